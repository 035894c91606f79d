// Carries out transfers between files and memory: in pieces, which go on where the system stops short. If the memory is
// a device's they pass through host buffers, unless a carrier moves them.
#pragma once

#include "base/sync.hpp"
#include "engine/engine.hpp"
#include "engine/work.hpp"
#include "memory/place.hpp"
#include "memory/region.hpp"
#include "storage/file_io.hpp"
#include "storage/fixed_buffers.hpp"
#include "storage/open_file.hpp"
#include "storage/staging_blocks.hpp"
#include "storage/under_way.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zerohop::storage {

// Larger transfers are cut into pieces, which the system carries out at the same time.
inline constexpr uint64_t kPieceBytes = 1ULL << 20;

// The outcome of a transfer that its caller has cancelled.
inline constexpr Outcome kCancelled{Status::cancelled, Reason::user};
// The outcome of a transfer that must be direct, and cannot.
inline constexpr Outcome kFileError{Status::file_error, Reason::none};
inline constexpr Outcome kNotDirect{Status::unsupported, Reason::not_direct};

// How a transfer has ended. `nbytes` from its start were moved, all of them if there is no failure and the file did not
// end before.
struct Ended {
    uint64_t nbytes = 0;
    Outcome outcome;
    int error = 0; // errno; 0: there is none
};

struct Range {
    uint64_t file_offset = 0;
    uint64_t memory_offset = 0;
    uint64_t nbytes = 0;
    uint64_t userdata = 0;
    uint32_t index = 0; // tells transfers of a ring apart
};

// Hears of the ends of transfers; called under the queue's lock.
class Sink {
public:
    virtual ~Sink() = default;
    virtual void ended(const Range& range, const Ended& ended) = 0;
    // Hears of bytes that were moved, and how.
    virtual void moved(Passage /*way*/, uint64_t /*nbytes*/) {}
    // False: nobody asks for what has not begun yet.
    [[nodiscard]] virtual bool wanted() const = 0;
};

// The file and the memory of all transfers of one call.
struct Ends {
    const std::shared_ptr<OpenFile>& file;
    Place memory;
    bool write = false;
    Priority priority = Priority::normal;
};

// Transfers that were asked for in one call.
struct Batch {
    std::shared_ptr<OpenFile> file;
    Place memory;
    std::shared_ptr<Sink> sink;
    bool write = false;
    Priority priority = Priority::normal;
    accel::Device* gpu = nullptr;                       // of which the memory is, if a carrier may move the bytes
    const FixedFile* fixed_file = nullptr;              // null: the system knows the file by its descriptors alone
    std::shared_ptr<const FixedBuffers::Buffers> fixed; // null: the system does not keep the memory at hand
    struct Transfer {
        Range range;
        uint64_t issued = 0; // bytes that pieces were made for
        uint64_t limit = 0;  // bytes that pieces are to be made for
        uint64_t reached = 0;
        uint32_t pieces = 0; // under way
        bool all_issued = false;
        Outcome failure;
        int error = 0;
    };
    std::vector<Transfer> transfers;
    size_t next = 0;    // the first that pieces are to be made for
    uint64_t epoch = 0; // of UnderWay
};

class FileQueue final : public Work {
public:
    // Throws NativeError.
    FileQueue(Engine& engine, std::unique_ptr<FileIo> io, uint64_t staging_bytes);
    ~FileQueue() override;
    FileQueue(const FileQueue&) = delete;
    FileQueue& operator=(const FileQueue&) = delete;

    // Begins transfers, which tell the sink when they end, and takes results that are there at once. The ranges lie
    // within the memory. Any thread.
    Outcome post(Ends ends, std::span<const Range> ranges, std::shared_ptr<Sink> sink);
    // Fails a sink's transfers that have this userdata, or all of them, where the system was not asked for all their
    // bytes yet. Each ends when nothing uses its memory any more; the others end as usual. Returns their number. Any
    // thread.
    size_t cancel(const Sink& sink, std::optional<uint64_t> userdata, Outcome outcome);

    // Has the system keep the pages of host memory at hand until unfix(); false, and `why`, if it does not. Transfers
    // work all the same, only slower. `object` is the one that the memory pins.
    [[nodiscard]] bool fix(const Place& memory, std::weak_ptr<const void> object, std::string& why);
    void unfix(const void* object);

    // Returns why bytes between a file and memory pass through host buffers; nothing, if a carrier moves those that are
    // aligned. The first call of a process and of a file does what that needs. Not under the queue's lock.
    [[nodiscard]] std::string why_staged(OpenFile& file, const Place& memory, CuFile& library);

    [[nodiscard]] const char* backend() const { return io_.name(); }
    [[nodiscard]] uint64_t staging_bytes() const { return staging_.nbytes(); }

    bool poll() override;
    int fd() const override { return io_.fd(); }
    Backlog backlog() const override;
    void close(Outcome outcome) override;
    bool idle() const override;
    OpRef under_way_at(int peer) override;
    void abandon() override;

private:
    using Transfer = Batch::Transfer;
    struct Piece {
        std::shared_ptr<Batch> batch;
        size_t transfer = 0; // of the batch
        uint64_t start = 0;  // in the transfer
        uint64_t nbytes = 0;
        uint64_t done = 0;
        uint64_t carried = 0; // the part of these that a carrier has moved; the rest passes through the block
        std::byte* at = nullptr;
        const Carrier* carrier = nullptr;
        StagingBlocks::Block block;
        std::shared_ptr<accel::Event> copy; // between the block and the device, while that is under way
        bool past_cache = false;
        bool refused = false; // the file system has refused this piece past the cache
    };

    void start_carrying();
    [[nodiscard]] accel::Device* gpu_of(const Place& memory) const;
    [[nodiscard]] bool issue_unstaged();
    void carry(size_t number);
    void stage(size_t number);
    void begin_staged(size_t number);
    void take_from_carrier(const Result& result);
    [[nodiscard]] uint64_t address_of(const Piece& piece) const;
    [[nodiscard]] bool is_done() const { return abandoned_ || under_way_.load(std::memory_order_acquire) == 0; }
    Outcome leave(std::shared_ptr<Batch> batch);
    void take_left();
    void take(std::shared_ptr<Batch> batch);
    [[nodiscard]] bool look();
    void issue();
    [[nodiscard]] bool issue_first(std::deque<std::shared_ptr<Batch>>& waiting);
    [[nodiscard]] bool begin_piece(const std::shared_ptr<Batch>& batch, Transfer& transfer, size_t index);
    void add_job(size_t number);
    void take_from_system(const Result& result);
    void take_result(const Result& result);
    void copy(size_t number, bool to_device);
    [[nodiscard]] bool look_at_copies();
    void fail_piece(size_t number, Outcome outcome, int error);
    void finish_piece(size_t number);
    void fail(Transfer& transfer, Outcome outcome, int error);
    void fail_rest(Batch& batch, Outcome outcome);
    static void stop(Transfer& transfer) { transfer.limit = transfer.issued; }
    void end(Batch& batch, Transfer& transfer);

    // The memory that the system and devices use while transfers are under way.
    struct InUse {
        InUse(std::unique_ptr<FileIo> way, StagingBlocks blocks) : io(std::move(way)), staging(std::move(blocks)) {}
        std::unique_ptr<FileIo> io;
        std::vector<std::shared_ptr<accel::Device>> devices; // kept for carriers
        StagingBlocks staging;
        std::vector<Piece> pieces;
    };

    Engine& engine_;
    std::unique_ptr<InUse> in_use_;
    FileIo& io_;
    StagingBlocks& staging_;
    std::vector<Piece>& pieces_;
    mutable LaneLock lock_;
    FixedBuffers fixed_;
    std::vector<size_t> free_;
    std::vector<std::pair<size_t, const accel::Stream*>> copying_; // pieces, in the order in which their copies began
    std::vector<size_t> unstaged_; // pieces that wait for a block, because no carrier moves the rest of them
    // With transfers that pieces are to be made for.
    std::array<std::deque<std::shared_ptr<Batch>>, kPriorities> waiting_;
    // Posted while another thread held the lock, and not taken yet.
    SpinLock left_lock_;
    std::deque<std::shared_ptr<Batch>> left_;
    std::atomic<bool> any_left_{false};
    OpenFile::Length length_; // holds for one pass: the file may change afterwards
    std::optional<Outcome> closed_;
    std::mutex carrying_mutex_;
    std::atomic<bool> carries_{false}; // a file was met whose bytes a carrier moves
    UnderWay transfers_{engine_};
    std::atomic<size_t> under_way_{0}; // pieces
    std::atomic<size_t> copies_{0};
    std::atomic<bool> unsent_{false};
    std::atomic<bool> is_closed_{false};
    bool abandoned_ = false; // this is a forked child: the parent has what is under way
};

} // namespace zerohop::storage
