// Names what differs between the vendors whose libraries these GPUs stand in for. AMD's library is made of the same
// sources: its functions have HIP's names by fake_hip/names.hpp, and those that differ in more are in fake_hip/.
#pragma once

namespace fake {

#ifdef FAKE_HIP
inline constexpr const char* kCountVariable = "FAKE_HIP_DEVICES";
inline constexpr const char* kVisibleVariable = "HIP_VISIBLE_DEVICES";
// Without a context of its own, a thread uses the first device's.
inline constexpr bool kAlwaysHasContext = true;
#else
inline constexpr const char* kCountVariable = "FAKE_CUDA_DEVICES";
inline constexpr const char* kVisibleVariable = "CUDA_VISIBLE_DEVICES";
inline constexpr bool kAlwaysHasContext = false;
#endif

} // namespace fake
