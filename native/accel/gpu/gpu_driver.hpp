// The driver of GPUs with CUDA's driver interface, or HIP's.
//
// What a caller may rely on, beyond driver.hpp:
// - It uses a device's primary context, as frameworks do. The context is retained on the first use of the device, and
//   never changed: no flag, limit or current device of any thread is touched.
// - `devices` opens the library; if that fails, or there is no device, the list is empty, and why_none() says why.
// - Memory is known by the driver's own identifiers, which are never used twice in a process. Memory of the virtual
//   memory interface may consist of several allocations that follow one another; each is described by itself.
// - Managed memory is `unknown`: its pages move, so that no address of it can be given to anybody.
#pragma once

#include "accel/gpu/gpu_device.hpp"

#include <memory>
#include <string>

namespace zerohop::accel {

class GpuDriver : public Driver {
public:
    // Returns why `devices` is empty; an empty text if it is not.
    [[nodiscard]] virtual std::string why_none() = 0;
    // Gives a device its copy kernels, which were compiled for it. Throws NativeError.
    virtual void load_kernels(int device, const std::string& image) = 0;
    // Returns the compute capability, as in 90; 0 if it is not known.
    [[nodiscard]] virtual int capability(int device) = 0;
};

[[nodiscard]] std::shared_ptr<GpuDriver> make_gpu_driver(const shim::GpuApi& api);

} // namespace zerohop::accel
