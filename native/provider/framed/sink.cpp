#include "provider/framed/sink.hpp"

#include "memory/staging.hpp"
#include "provider/framed/byte_stream.hpp"

#include <vector>

namespace zerohop::framed {

namespace {

class HostSink final : public Sink {
public:
    explicit HostSink(Pin<Region> region) : region_(std::move(region)) {}

    bool begin_frame(Extents extents) override {
        extents_ = extents;
        return true;
    }
    size_t scatter(iovec* pieces, size_t max, uint64_t limit) override {
        return pieces_of(extents_.first(limit), pieces, max);
    }
    void consume(uint64_t nbytes) override { extents_.advance(nbytes); }
    void end_frame(bool /*keep*/) override {}
    bool settled() override { return true; }
    Outcome outcome() const override { return region_->moved() ? kLocalMoved : Outcome{}; }

private:
    Pin<Region> region_;
    Extents extents_;
};

class DeviceSink final : public Sink {
public:
    DeviceSink(Staging& staging, Pin<Region> region) : staging_(staging), region_(std::move(region)) {}

    bool begin_frame(Extents extents) override {
        if (!buffer_) {
            buffer_ = staging_.try_acquire(Staging::Direction::inbound, outcome_);
            if (!buffer_) {
                return !outcome_.ok();
            }
        }
        extents_ = extents;
        filled_ = 0;
        return true;
    }
    size_t scatter(iovec* pieces, size_t /*max*/, uint64_t limit) override {
        pieces[0] = {buffer_.data() + filled_, limit};
        return 1;
    }
    void consume(uint64_t nbytes) override { filled_ += nbytes; }

    void end_frame(bool keep) override {
        if (!keep || filled_ == 0) {
            buffer_ = {}; // others may need it before this sink gets its next frame, if it does
            return;
        }
        accel::Stream* stream = staging_.stream(region_->device(), Staging::Direction::inbound, outcome_);
        if (stream == nullptr) {
            return;
        }
        std::vector<accel::CopySegment> segments;
        for (uint64_t at = 0; extents_.left() != 0;) {
            const uint64_t n = extents_.contiguous();
            segments.push_back({extents_.address(), reinterpret_cast<uint64_t>(buffer_.data()) + at, n});
            extents_.advance(n);
            at += n;
        }
        std::shared_ptr<accel::Event> event = stream->copy(segments);
        copies_.push_back({std::move(buffer_), std::move(event)});
        buffer_ = {};
    }

    bool settled() override {
        std::erase_if(copies_, [this](const Copy& copy) {
            const accel::EventState state = copy.event->query();
            if (state == accel::EventState::failed && outcome_.ok()) {
                outcome_ = copy.event->outcome();
            }
            return state != accel::EventState::pending;
        });
        return copies_.empty();
    }
    Outcome outcome() const override { return outcome_; }

private:
    struct Copy {
        StagingBuffer buffer;
        std::shared_ptr<accel::Event> event;
    };
    Staging& staging_;
    Pin<Region> region_;
    Extents extents_;
    StagingBuffer buffer_;
    uint64_t filled_ = 0;
    std::vector<Copy> copies_;
    Outcome outcome_;
};

} // namespace

std::unique_ptr<Sink> make_sink(Staging& staging, Pin<Region> region) {
    if (region->is_host()) {
        return std::make_unique<HostSink>(std::move(region));
    }
    return std::make_unique<DeviceSink>(staging, std::move(region));
}

} // namespace zerohop::framed
