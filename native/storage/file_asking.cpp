#include "storage/file_asking.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

namespace zerohop::storage {

namespace {

constexpr Outcome kServerClosed{Status::peer_lost, Reason::owner_closed};

// Returns how a transfer has ended that the answer tells of; false for nonsense.
bool ended_by(const Answer& answer, uint64_t nbytes, bool write, Ended& ended) {
    const Outcome outcome = answer.outcome;
    if (answer.done > nbytes || outcome.reason > kLastReason || outcome.status > Status::file_error ||
        outcome.status == Status::pending || outcome.status == Status::would_block ||
        (outcome.ok() && write && answer.done < nbytes)) {
        return false;
    }
    // The server's Store is meant, which this side's caller does not know.
    ended = {answer.done, outcome.status == Status::closed ? kServerClosed : outcome,
             outcome.status == Status::file_error ? answer.error : 0};
    return true;
}

} // namespace

ServedNumber::ServedNumber(const std::shared_ptr<FileAsking>& asking, Purpose::What what, uint16_t number)
    : engine_(asking->engine()), asking_(asking), what_(what), number_(number) {}

ServedNumber::~ServedNumber() {
    const std::shared_ptr<Engine> engine = engine_.lock(); // which is to outlive the other
    if (const std::shared_ptr<FileAsking> asking = asking_.lock()) {
        asking->forget(what_, number_);
    }
}

FileAsking::FileAsking(Engine& engine, std::shared_ptr<Endpoint> lane)
    : engine_(engine), lane_(std::move(lane)), queue_(engine_.open_queue()),
      answered_(engine_.notifications().of(queue_)) {
    slots_.resize(kSlots);
    cancelled_.reserve(kSlots);
    free_.reserve(kSlots);
    for (uint32_t i = kSlots; i-- > 0;) {
        free_.push_back(i);
    }
    engine_.take_from(queue_, lane_->peer().id());
}

FileAsking::~FileAsking() {
    engine_.close_queue(queue_);
}

void FileAsking::ask_by(uint16_t queue) {
    const std::lock_guard lock(lock_);
    asks_queue_ = queue;
    send();
}

bool FileAsking::has_asked() const {
    const std::lock_guard lock(lock_);
    return asks_queue_.has_value();
}

bool FileAsking::post(ServedEnds ends, std::span<const Range> ranges, std::shared_ptr<Sink> sink) {
    if (!ends.file->is_of(*this) || !ends.memory->is_of(*this)) {
        return false;
    }
    auto batch = std::make_shared<Batch>();
    batch->ends = std::move(ends);
    batch->sink = std::move(sink);
    batch->ranges.assign(ranges.begin(), ranges.end());
    const std::lock_guard lock(lock_);
    if (!usable()) {
        return false;
    }
    Batch& taken = *batch;
    waiting_.at(static_cast<size_t>(batch->ends.priority)).push_back(std::move(batch));
    taken.epoch = under_way_.begin(taken.ranges.size()); // now that nothing fails any more: they will end
    send();
    return true;
}

size_t FileAsking::cancel(const Sink& sink, std::optional<uint64_t> userdata) {
    const std::lock_guard lock(lock_);
    size_t found = 0;
    const auto is_meant = [&](const Batch& batch, size_t range) {
        return batch.sink.get() == &sink && (!userdata || batch.ranges[range].userdata == *userdata);
    };
    for (uint32_t number = 0; number < slots_.size(); ++number) {
        Slot& slot = slots_[number];
        if (slot.batch && !slot.is_cancelled && is_meant(*slot.batch, slot.range)) {
            slot.is_cancelled = true;
            cancelled_.push_back(number);
            ++found;
        }
    }
    for (auto& waiting : waiting_) {
        for (const auto& batch : waiting) {
            size_t kept = batch->next;
            for (size_t i = batch->next; i < batch->ranges.size(); ++i) {
                if (is_meant(*batch, i)) {
                    end(*batch, i, {0, kCancelled, 0});
                    ++found;
                } else {
                    batch->ranges[kept++] = batch->ranges[i];
                }
            }
            batch->ranges.resize(kept);
        }
        std::erase_if(waiting, [](const auto& batch) { return batch->next == batch->ranges.size(); });
    }
    send();
    return found;
}

void FileAsking::forget(Purpose::What what, uint16_t number) {
    if (!is_closed_.load(std::memory_order_acquire)) {
        try {
            const std::lock_guard lock(forgotten_lock_);
            forgotten_.push_back({what, number});
            forgets_.store(true, std::memory_order_release);
        } catch (const std::bad_alloc&) {
            return; // the number is lost, of which the server has many
        }
        engine_.kick(); // for poll(), which sends it
    }
}

bool FileAsking::poll() {
    bool moved = false;
    try {
        moved = take_answers();
    } catch (const std::bad_alloc&) { // an answer may be lost
        lane_->fail(kLaneOutOfMemory);
    }
    if (const Outcome state = lane_state(); !state.ok() && !is_closed_.load(std::memory_order_relaxed)) {
        close(state);
        moved = true;
    }
    if (moved || unsent_.load(std::memory_order_acquire) || forgets_.load(std::memory_order_acquire)) {
        const std::lock_guard lock(lock_);
        send();
    }
    return moved;
}

bool FileAsking::take_answers() {
    bool moved = false;
    while (const std::optional<Notification> note = engine_.pop_notification(queue_, 0, 0, false)) {
        moved = true;
        if (!take(*note)) {
            lane_->fail({Status::protocol, Reason::malformed});
            break;
        }
    }
    return moved;
}

Backlog FileAsking::backlog() const {
    Backlog backlog;
    backlog.ready = !answered_->empty() || (!is_closed_.load(std::memory_order_relaxed) && !lane_state().ok()) ||
                    (forgets_.load(std::memory_order_acquire) && !unsent_.load(std::memory_order_acquire));
    return backlog;
}

// Returns false for nonsense.
bool FileAsking::take(const Notification& note) {
    std::array<Answer, kAnswersOfMessage> answers;
    size_t count = 0;
    if (!entries_of<Answer>(note.message, answers, count)) {
        return false;
    }
    const std::lock_guard lock(lock_);
    return std::all_of(answers.begin(), answers.begin() + static_cast<ptrdiff_t>(count),
                       [&](const Answer& answer) { return take(answer); });
}

bool FileAsking::take(const Answer& answer) {
    if (answer.slot == kFarewell) {
        is_closed_.store(true, std::memory_order_release);
        end_all(kServerClosed);
        return true;
    }
    if (answer.slot >= slots_.size() || !slots_[answer.slot].batch) {
        return false;
    }
    Slot& slot = slots_[answer.slot];
    const Batch& batch = *slot.batch;
    const Range& range = batch.ranges[slot.range];
    Ended ended;
    if (!ended_by(answer, range.nbytes, batch.ends.write, ended)) {
        return false;
    }
    end(batch, slot.range, ended);
    if (slot.is_cancelled) {
        std::erase(cancelled_, answer.slot);
    }
    free_slot(answer.slot);
    return true;
}

void FileAsking::free_slot(uint32_t number) {
    Slot& slot = slots_[number];
    bytes_asked_ -= slot.batch->ranges[slot.range].nbytes;
    slot = {};
    free_.push_back(number);
}

OpRef FileAsking::under_way_at(int peer) {
    const std::lock_guard lock(lock_);
    return peer >= 0 && peer != lane_->peer().id() ? OpRef() : under_way_.all();
}

// The caller holds the lock.
void FileAsking::end(const Batch& batch, size_t range, const Ended& ended) {
    batch.sink->ended(batch.ranges[range], ended);
    under_way_.end_one(batch.epoch);
}

// Ends what the server was not asked for.
void FileAsking::end_rest(Batch& batch, Outcome outcome) {
    for (; batch.next < batch.ranges.size(); ++batch.next) {
        end(batch, batch.next, {0, outcome, 0});
    }
}

// The caller holds the lock.
void FileAsking::end_all(Outcome outcome) {
    for (uint32_t number = 0; number < slots_.size(); ++number) {
        Slot& slot = slots_[number];
        if (slot.batch) {
            end(*slot.batch, slot.range, {0, outcome, 0});
            free_slot(number);
        }
    }
    for (auto& waiting : waiting_) {
        for (const auto& batch : waiting) {
            end_rest(*batch, outcome);
        }
        waiting.clear();
    }
    cancelled_.clear();
    unsent_.store(false, std::memory_order_release);
}

void FileAsking::close(Outcome outcome) {
    const std::lock_guard lock(lock_);
    end_all(outcome);
    is_closed_.store(true, std::memory_order_release);
}

} // namespace zerohop::storage
