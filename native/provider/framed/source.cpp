#include "provider/framed/source.hpp"

#include "memory/copy.hpp"
#include "memory/staging.hpp"
#include "provider/framed/byte_stream.hpp"
#include "provider/framed/frame.hpp"

#include <algorithm>
#include <deque>
#include <vector>

namespace zerohop::framed {

namespace {

uint32_t unit_of(const Extents& extents) {
    return static_cast<uint32_t>(extents.unit(kMaxPayload, kMaxPagesPerWrite));
}

const std::byte* zeros() {
    static const std::vector<std::byte> page(kMaxPayload);
    return page.data();
}

iovec piece(const void* data, uint64_t nbytes) {
    return {const_cast<void*>(data), nbytes};
}

class HostSource final : public Source {
public:
    HostSource(Pin<Region> region, Extents extents, std::shared_ptr<const void> pages)
        : region_(std::move(region)), extents_(extents), pages_(std::move(pages)) {}

    uint32_t unit() override {
        if (region_->moved()) {
            lose(kLocalMoved);
        }
        return outcome().ok() ? unit_of(extents_) : 0;
    }

    size_t gather(iovec* pieces, size_t max, uint64_t limit) override {
        if (blank_) {
            pieces[0] = piece(zeros(), std::min<uint64_t>(limit, kMaxPayload));
            return 1;
        }
        return pieces_of(extents_.first(limit), pieces, max);
    }

    void consume(uint64_t nbytes) override {
        extents_.advance(nbytes);
        if (region_->moved()) { // meanwhile: these may be bytes of other memory
            lose(kLocalMoved);
        }
    }
    bool may_change() const override { return true; }
    uint64_t left() const override { return extents_.left(); }
    void blank() override { blank_ = true; }
    bool settled() override { return true; }

private:
    Pin<Region> region_;
    Extents extents_;
    std::shared_ptr<const void> pages_;
    bool blank_ = false;
};

class DeviceSource final : public Source {
public:
    DeviceSource(Staging& staging, Pin<Region> region, Extents extents, std::shared_ptr<const void> pages)
        : staging_(staging), region_(std::move(region)), extents_(extents), pages_(std::move(pages)),
          left_(extents.left()) {}

    uint32_t unit() override {
        start_copies();
        if (stages_.empty() || !outcome().ok()) {
            return 0;
        }
        Stage& front = stages_.front();
        switch (front.event->query()) {
        case accel::EventState::pending:
            return 0;
        case accel::EventState::failed:
            set_outcome(front.event->outcome());
            return 0;
        case accel::EventState::done:
            break;
        }
        return front.nbytes - front.sent;
    }

    size_t gather(iovec* pieces, size_t /*max*/, uint64_t limit) override {
        const Stage& front = stages_.front();
        const uint64_t n = std::min<uint64_t>(limit, front.nbytes - front.sent);
        pieces[0] = blank_ ? piece(zeros(), n) : piece(front.buffer.data() + front.sent, n);
        return 1;
    }

    void consume(uint64_t nbytes) override {
        Stage& front = stages_.front();
        front.sent += static_cast<uint32_t>(nbytes);
        left_ -= nbytes;
        if (front.sent == front.nbytes) {
            stages_.pop_front();
        }
    }

    uint64_t left() const override { return left_; }
    void blank() override { blank_ = true; }

    bool settled() override {
        return std::all_of(stages_.begin(), stages_.end(),
                           [](const Stage& stage) { return stage.event->query() != accel::EventState::pending; });
    }

private:
    struct Stage {
        StagingBuffer buffer;
        std::shared_ptr<accel::Event> event;
        uint32_t nbytes = 0;
        uint32_t sent = 0;
    };

    void start_copies() {
        while (outcome().ok() && extents_.left() != 0 && stages_.size() < kStagesAhead) {
            Outcome why;
            accel::Stream* stream = staging_.stream(region_->device(), Staging::Direction::outbound, why);
            if (stream == nullptr) {
                set_outcome(why);
                return;
            }
            StagingBuffer buffer = staging_.try_acquire(Staging::Direction::outbound, why);
            if (!buffer) {
                set_outcome(why);
                return;
            }
            const uint32_t nbytes = unit_of(extents_);
            std::vector<accel::CopySegment> segments;
            Extents walk = extents_.first(nbytes);
            for (auto to = reinterpret_cast<uint64_t>(buffer.data()); walk.left() != 0;) {
                const uint64_t n = walk.contiguous();
                segments.push_back({to, walk.address(), n});
                walk.advance(n);
                to += n;
            }
            std::shared_ptr<accel::Event> event = stream->copy(segments);
            stages_.push_back({std::move(buffer), std::move(event), nbytes, 0});
            extents_.advance(nbytes);
        }
    }

    Staging& staging_;
    Pin<Region> region_;
    Extents extents_;
    std::shared_ptr<const void> pages_;
    uint64_t left_;
    std::deque<Stage> stages_;
    bool blank_ = false;
};

} // namespace

std::unique_ptr<Source> make_source(Staging& staging, Pin<Region> region, Extents extents,
                                    std::shared_ptr<const void> pages) {
    if (region->is_host()) {
        return std::make_unique<HostSource>(std::move(region), extents, std::move(pages));
    }
    return std::make_unique<DeviceSource>(staging, std::move(region), extents, std::move(pages));
}

} // namespace zerohop::framed
