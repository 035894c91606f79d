// A one-dimensional array of Python's with numbers of 64 bits, for as long as this object lives.
//
// By the buffer protocol, because the caster for arrays ends the process where there is no memory for its own needs.
#pragma once

#include "bind/common.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace zerohop::bind {

class Indices {
public:
    // Throws what the object raises if it shows no such array, TypeError if its numbers are others.
    explicit Indices(nb::handle array) {
        if (PyObject_GetBuffer(array.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
            throw nb::python_error();
        }
        const std::string_view format = view_.format == nullptr ? "" : view_.format;
        if (view_.ndim != 1 || view_.itemsize != sizeof(int64_t) || (format != "l" && format != "q")) {
            PyBuffer_Release(&view_);
            throw nb::type_error("not a one-dimensional array of int64");
        }
    }
    Indices(const Indices&) = delete;
    Indices& operator=(const Indices&) = delete;
    ~Indices() { PyBuffer_Release(&view_); }

    [[nodiscard]] size_t size() const { return static_cast<size_t>(view_.len) / sizeof(int64_t); }
    [[nodiscard]] std::span<const int64_t> numbers() const { return {static_cast<const int64_t*>(view_.buf), size()}; }

private:
    Py_buffer view_{};
};

} // namespace zerohop::bind
