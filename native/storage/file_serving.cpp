#include "storage/file_serving.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

namespace zerohop::storage {

namespace {

constexpr size_t kMessagesAtOnce = 64;
// Numbers that a client may have.
constexpr size_t kMostFiles = 4096;
constexpr size_t kMostMemories = 1024;
constexpr Outcome kUnknown{Status::access_denied, Reason::unknown_share};
constexpr Outcome kBounds{Status::access_denied, Reason::bounds};
constexpr Outcome kRights{Status::access_denied, Reason::rights};
constexpr Outcome kNoMemory{Status::no_memory, Reason::out_of_memory};

template <class Entry, class Free>
std::optional<uint16_t> put(std::vector<Entry>& table, size_t most, Entry entry, const Free& is_free) {
    const auto place = std::find_if(table.begin(), table.end(), is_free);
    const auto number = static_cast<size_t>(place - table.begin());
    if (place != table.end()) {
        *place = std::move(entry);
    } else if (number < most) {
        table.push_back(std::move(entry));
    } else {
        return std::nullopt;
    }
    return static_cast<uint16_t>(number);
}

} // namespace

FileServing::Answers::Answers(Host& host, std::shared_ptr<ServedBytes> moved) : host_(host), moved_(std::move(moved)) {
    slots_.resize(kSlots);
    answers_.reserve(kSlots);
}

bool FileServing::Answers::begin(const Ask& ask, bool write) {
    const std::lock_guard lock(lock_);
    if (ask.slot >= slots_.size() || slots_[ask.slot].taken) {
        return false;
    }
    slots_[ask.slot] = {true, write, ask.nbytes};
    under_way_.fetch_add(1, std::memory_order_release);
    bytes_.fetch_add(ask.nbytes, std::memory_order_release);
    return true;
}

void FileServing::Answers::ended(const Range& range, const Ended& ended) {
    const uint64_t slot = range.userdata;
    bool first = false;
    {
        const std::lock_guard lock(lock_);
        const Slot& of = slots_[slot];
        (of.write ? moved_->written : moved_->read).fetch_add(ended.nbytes, std::memory_order_relaxed);
        bytes_.fetch_sub(of.nbytes, std::memory_order_release);
        answers_.push_back(
            {ended.nbytes, static_cast<uint32_t>(slot), static_cast<uint16_t>(ended.error), ended.outcome});
        first = waiting_.fetch_add(1, std::memory_order_release) == 0;
        under_way_.fetch_sub(1, std::memory_order_release);
    }
    if (first) {
        host_.kick(); // another thread's look at the files may have found the end
    }
}

size_t FileServing::Answers::look(std::span<Answer> into) const {
    const std::lock_guard lock(lock_);
    const size_t count = std::min(into.size(), answers_.size());
    std::copy_n(answers_.begin(), count, into.begin());
    return count;
}

void FileServing::Answers::drop(size_t count) {
    const std::lock_guard lock(lock_);
    const auto end = answers_.begin() + static_cast<ptrdiff_t>(count);
    std::for_each(answers_.begin(), end, [&](const Answer& answer) { slots_[answer.slot] = {}; });
    answers_.erase(answers_.begin(), end);
    waiting_.store(answers_.size(), std::memory_order_release);
}

FileServing::FileServing(Engine& engine, std::shared_ptr<FileQueue> files, std::shared_ptr<Endpoint> lane,
                         uint16_t answers, std::shared_ptr<ServedBytes> bytes)
    : engine_(engine), queue_of_files_(std::move(files)), lane_(std::move(lane)), answers_queue_(answers),
      queue_(engine_.open_queue()), asked_(engine_.notifications().of(queue_)),
      answers_(std::make_shared<Answers>(engine_, std::move(bytes))) {
    gathered_.ranges.reserve(kMessagesAtOnce * kAsksOfMessage);
    engine_.take_from(queue_, lane_->peer().id());
}

FileServing::~FileServing() {
    engine_.close_queue(queue_);
}

std::optional<uint16_t> FileServing::add_file(std::shared_ptr<OpenFile> file, bool reads, bool writes) {
    const std::lock_guard lock(tables_lock_);
    return put(files_, kMostFiles, {std::move(file), reads, writes},
               [](const File& each) { return each.file == nullptr; });
}

std::optional<uint16_t> FileServing::add_memory(std::shared_ptr<const RemoteAccess> access, uint64_t start,
                                                uint64_t nbytes, uint8_t rights) {
    const std::lock_guard lock(tables_lock_);
    return put(memories_, kMostMemories, {std::move(access), start, nbytes, rights},
               [](const Memory& each) { return each.access == nullptr; });
}

bool FileServing::poll() {
    bool moved = false;
    if (const Outcome state = lane_state(); !state.ok() && answers_->wanted()) {
        close(state);
    }
    try {
        moved = take_asks();
    } catch (const std::bad_alloc&) { // what was asked for may be lost
        lane_->fail(kLaneOutOfMemory);
    }
    begin_gathered();
    moved |= send_answers();
    return moved;
}

bool FileServing::take_asks() {
    bool moved = false;
    for (size_t i = 0; i < kMessagesAtOnce && has_room(); ++i) {
        const std::optional<Notification> note = engine_.pop_notification(queue_, 0, 0, false);
        if (!note) {
            break;
        }
        moved = true;
        if (!take(*note)) {
            lane_->fail({Status::protocol, Reason::malformed});
            break;
        }
    }
    return moved;
}

Backlog FileServing::backlog() const {
    Backlog backlog;
    backlog.ready = (!asked_->empty() && has_room()) || (!answers_->empty() && !stuck_);
    return backlog;
}

void FileServing::close(Outcome outcome) {
    answers_->closed.store(true, std::memory_order_release);
    (void)queue_of_files_->cancel(*answers_, std::nullopt, outcome);
    engine_.kick(); // for the farewell
}

bool FileServing::idle() const {
    return !answers_->wanted() && answers_->under_way() == 0 &&
           (has_parted_.load(std::memory_order_acquire) || engine_.closed());
}

// Returns false for nonsense. What comes after close() has no answer but the farewell.
bool FileServing::take(const Notification& note) {
    Purpose purpose;
    std::array<Ask, kAsksOfMessage> asks;
    size_t count = 0;
    if (!Purpose::of(note.value, purpose) || !entries_of<Ask>(note.message, asks, count)) {
        return false;
    }
    if (!answers_->wanted()) {
        return true;
    }
    for (size_t i = 0; i < count; ++i) {
        if (purpose.what == Purpose::What::transfer) {
            if (!add(purpose, asks[i])) {
                return false;
            }
            continue;
        }
        begin_gathered();
        if (purpose.what == Purpose::What::cancel) {
            (void)queue_of_files_->cancel(*answers_, asks[i].slot, kCancelled);
        } else {
            forget(purpose, asks[i]);
        }
    }
    return true;
}

bool FileServing::add(const Purpose& purpose, const Ask& ask) {
    if (purpose != gathered_.purpose || ask.file != gathered_.file || ask.memory != gathered_.memory ||
        gathered_.ranges.size() == gathered_.ranges.capacity()) {
        begin_gathered();
        gathered_.purpose = purpose;
        gathered_.file = ask.file;
        gathered_.memory = ask.memory;
    }
    if (!answers_->begin(ask, purpose.write)) {
        return false;
    }
    gathered_.ranges.push_back({ask.file_offset, ask.memory_offset, ask.nbytes, ask.slot});
    return true;
}

void FileServing::forget(const Purpose& purpose, const Ask& ask) {
    File file; // both are dropped outside the lock: closing a file may take long
    Memory memory;
    const std::lock_guard lock(tables_lock_);
    if (purpose.what == Purpose::What::forget_file && ask.file < files_.size()) {
        std::swap(file, files_[ask.file]);
    } else if (purpose.what == Purpose::What::forget_memory && ask.memory < memories_.size()) {
        std::swap(memory, memories_[ask.memory]);
    }
}

// Begins the transfers that were gathered, or answers why not.
void FileServing::begin_gathered() {
    if (gathered_.ranges.empty()) {
        return;
    }
    Outcome outcome;
    try {
        outcome = begin(gathered_);
    } catch (const std::bad_alloc&) { // nothing has begun
        outcome = kNoMemory;
    }
    if (!outcome.ok()) {
        for (const Range& range : gathered_.ranges) {
            answers_->ended(range, {0, outcome, 0});
        }
    }
    gathered_.ranges.clear();
}

Outcome FileServing::begin(Gathered& gathered) {
    File file;
    Memory memory;
    {
        const std::lock_guard lock(tables_lock_);
        file = gathered.file < files_.size() ? files_[gathered.file] : File{};
        memory = gathered.memory < memories_.size() ? memories_[gathered.memory] : Memory{};
    }
    const bool write = gathered.purpose.write;
    if (file.file == nullptr || memory.access == nullptr) {
        return kUnknown;
    }
    if (!(write ? file.writes : file.reads) || (memory.rights & (write ? kRightRead : kRightWrite)) == 0) {
        return kRights;
    }
    // A client of ours has checked its ranges: all of these are a stranger's.
    const bool lies_within = std::all_of(gathered.ranges.begin(), gathered.ranges.end(), [&](const Range& range) {
        return range.nbytes <= kMostAskBytes && range.nbytes <= memory.nbytes &&
               range.memory_offset <= memory.nbytes - range.nbytes &&
               range.file_offset <= static_cast<uint64_t>(INT64_MAX) - range.nbytes;
    });
    if (!lies_within) {
        return kBounds;
    }
    for (Range& range : gathered.ranges) {
        range.memory_offset += memory.start;
    }
    Place place;
    if (const Outcome pinned = memory.access->pin(place); !pinned.ok()) {
        return pinned;
    }
    return queue_of_files_->post({file.file, std::move(place), write, gathered.purpose.priority}, gathered.ranges,
                                 answers_);
}

bool FileServing::send_answers() {
    std::array<Answer, kAnswersOfMessage> answers;
    bool moved = false;
    stuck_ = false;
    while (!stuck_ && !answers_->empty()) {
        const size_t count = answers_->look(answers);
        if (send({answers.data(), count})) {
            answers_->drop(count);
            moved = true;
        } else {
            stuck_ = true;
        }
    }
    if (!answers_->wanted() && answers_->under_way() == 0 && answers_->empty() && !has_parted_) {
        const Answer farewell{0, kFarewell, 0, {}};
        has_parted_ = send({&farewell, 1});
        moved |= has_parted_;
    }
    return moved;
}

// Returns false if the lane has no room. One that is gone takes everything.
bool FileServing::send(std::span<const Answer> answers) {
    const Message message = message_with<Answer>(answers);
    Request request;
    request.kind = Kind::notify;
    request.notify = notify_of(answers_queue_, 0);
    request.message = &message;
    return engine_.try_post(*lane_, request).what != Posted::What::retry;
}

} // namespace zerohop::storage
