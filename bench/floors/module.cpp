// zerohop._floors: what this machine allows, measured without zerohop. One bind function per file.
#include "common.hpp"

NB_MODULE(_floors, m) {
    m.doc() = "Raw limits of this machine: plain C++ that uses no zerohop code.";
    floors::bind_shared_copy(m);
    floors::bind_flag(m);
    floors::bind_gpu(m);
    floors::bind_gpu_files(m);
    floors::bind_gpu_memory(m);
    floors::bind_ring(m);
    floors::bind_socket(m);
    floors::bind_tls(m);
}
