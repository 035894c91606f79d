// Floor: a stream through TLS 1.3 over a blocking TCP socket, by OpenSSL 3, which is found at run time.
#include "socket.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <dlfcn.h>
#include <memory>

namespace floors {

namespace {

// As OpenSSL 3 declares them; its types are opaque, and the numbers are part of its binary interface.
struct OpenSsl {
    const void* (*method)();
    void* (*context_new)(const void*);
    void (*context_free)(void*);
    long (*context_control)(void*, int, long, void*);
    int (*set_tickets)(void*, size_t);
    int (*use_certificate)(void*, void*);
    int (*use_key)(void*, void*);
    void* (*read_certificate)(void**, const unsigned char**, long);
    void (*certificate_free)(void*);
    void* (*raw_key)(int, void*, const unsigned char*, size_t);
    void (*key_free)(void*);
    void* (*session_new)(void*);
    void (*session_free)(void*);
    int (*set_socket)(void*, int);
    int (*dial)(void*);
    int (*accept)(void*);
    int (*read)(void*, void*, int);
    int (*write)(void*, const void*, int);
    int (*error)(const void*, int);
    void (*clear_errors)();
};

constexpr int kSetLeastVersion = 123;
constexpr long kTls13 = 0x0304;
constexpr int kEd25519 = 1087;
constexpr int kWantRead = 2;
constexpr int kWantWrite = 3;
constexpr size_t kMostAtOnce = 1 << 30;

OpenSsl load() {
    void* const library = dlopen("libssl.so.3", RTLD_NOW);
    if (library == nullptr)
        throw std::runtime_error(dlerror());
    OpenSsl found{};
    const auto find = [library](auto& function, const char* name) {
        // libcrypto comes with libssl, and is searched, too.
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
        if (function == nullptr)
            throw std::runtime_error(std::string("libssl.so.3 has no ") + name);
    };
    find(found.method, "TLS_method");
    find(found.context_new, "SSL_CTX_new");
    find(found.context_free, "SSL_CTX_free");
    find(found.context_control, "SSL_CTX_ctrl");
    find(found.set_tickets, "SSL_CTX_set_num_tickets");
    find(found.use_certificate, "SSL_CTX_use_certificate");
    find(found.use_key, "SSL_CTX_use_PrivateKey");
    find(found.read_certificate, "d2i_X509");
    find(found.certificate_free, "X509_free");
    find(found.raw_key, "EVP_PKEY_new_raw_private_key");
    find(found.key_free, "EVP_PKEY_free");
    find(found.session_new, "SSL_new");
    find(found.session_free, "SSL_free");
    find(found.set_socket, "SSL_set_fd");
    find(found.dial, "SSL_connect");
    find(found.accept, "SSL_accept");
    find(found.read, "SSL_read");
    find(found.write, "SSL_write");
    find(found.error, "SSL_get_error");
    find(found.clear_errors, "ERR_clear_error");
    return found;
}

const OpenSsl& openssl() {
    static const OpenSsl once = load();
    return once;
}

std::string tls_why_not() {
    try {
        openssl();
    } catch (const std::runtime_error& error) {
        return error.what();
    }
    return "";
}

using Owned = std::unique_ptr<void, void (*)(void*)>;

const unsigned char* unsigned_of(const nb::bytes& bytes) {
    return reinterpret_cast<const unsigned char*>(bytes.c_str());
}

// One end of a session. OpenSSL chooses the cipher suite: of two ends with its own settings, always the same one.
class Session {
public:
    Session(int fd, double timeout)
        : fd_(fd), timeout_(timeout), context_(new_context()), ssl_(nullptr, api_.session_free) {
        limit_calls(fd);
    }

    void dial() {
        begin();
        each("SSL_connect", [&] { return api_.dial(ssl_.get()); });
    }

    // `certificate` is self-signed, in DER; `seed` is its Ed25519 key.
    void accept(const nb::bytes& certificate, const nb::bytes& seed) {
        const unsigned char* at = unsigned_of(certificate);
        const Owned shown(api_.read_certificate(nullptr, &at, static_cast<long>(certificate.size())),
                          api_.certificate_free);
        const Owned key(api_.raw_key(kEd25519, nullptr, unsigned_of(seed), seed.size()), api_.key_free);
        if (!shown || !key || api_.use_certificate(context_.get(), shown.get()) != 1 ||
            api_.use_key(context_.get(), key.get()) != 1)
            throw std::runtime_error("OpenSSL does not take the certificate");
        const nb::gil_scoped_release released;
        begin();
        each("SSL_accept", [&] { return api_.accept(ssl_.get()); });
    }

    void send(const uint8_t* data, size_t nbytes) {
        while (nbytes > 0) {
            const auto most = static_cast<int>(std::min(nbytes, kMostAtOnce));
            const auto sent = each("SSL_write", [&] { return api_.write(ssl_.get(), data, most); });
            data += sent;
            nbytes -= sent;
        }
    }

    void receive(uint8_t* data, size_t nbytes) {
        while (nbytes > 0) {
            const auto most = static_cast<int>(std::min(nbytes, kMostAtOnce));
            const auto got = each("SSL_read", [&] { return api_.read(ssl_.get(), data, most); });
            data += got;
            nbytes -= got;
        }
    }

private:
    static Owned new_context() {
        const OpenSsl& api = openssl();
        Owned context(api.context_new(api.method()), api.context_free);
        if (!context || api.context_control(context.get(), kSetLeastVersion, kTls13, nullptr) != 1 ||
            // Tickets would arrive in the midst of the payload.
            api.set_tickets(context.get(), 0) != 1)
            throw std::runtime_error("OpenSSL has no TLS 1.3");
        return context;
    }

    void begin() {
        ssl_.reset(api_.session_new(context_.get()));
        if (!ssl_ || api_.set_socket(ssl_.get(), fd_) != 1)
            throw std::runtime_error("OpenSSL makes no session");
    }

    // Repeats a call until it has done something, and returns its result.
    template <typename Call>
    size_t each(const char* what, Call call) {
        int64_t deadline_ns = 0;
        while (true) {
            api_.clear_errors();
            const int result = call();
            if (result > 0)
                return static_cast<size_t>(result);
            const int error = api_.error(ssl_.get(), result);
            if (error != kWantRead && error != kWantWrite)
                throw std::runtime_error(std::string(what) + " fails: error " + std::to_string(error));
            errno = EAGAIN;
            go_on_waiting(deadline_ns, timeout_, what);
        }
    }

    const OpenSsl& api_ = openssl();
    int fd_;
    double timeout_;
    Owned context_;
    Owned ssl_;
};

Samples tls_send(int fd, const ConstBytes& source, size_t rounds, double timeout) {
    Samples samples(rounds);
    const nb::gil_scoped_release released;
    Session session(fd, timeout);
    session.dial();
    for (int64_t& sample : samples) {
        uint8_t answer = 0;
        const int64_t start = now_ns();
        session.send(source.data(), source.size());
        session.receive(&answer, 1);
        sample = now_ns() - start;
    }
    return samples;
}

void tls_receive(int fd, const Bytes& target, size_t rounds, const nb::bytes& certificate, const nb::bytes& key,
                 double timeout) {
    Session session(fd, timeout);
    session.accept(certificate, key);
    const nb::gil_scoped_release released;
    for (size_t i = 0; i < rounds; ++i) {
        const uint8_t answer = 1;
        session.receive(target.data(), target.size());
        session.send(&answer, 1);
    }
}

} // namespace

void bind_tls(nb::module_& m) {
    m.def("tls_why_not", &tls_why_not, "Why there is no TLS here; empty if there is.");
    m.def("tls_send", &tls_send, nb::arg("fd"), nb::arg("source"), nb::arg("rounds"), nb::arg("timeout"),
          "Begins a session, streams `source`, waits for one byte of answer; nanoseconds of each round.");
    m.def("tls_receive", &tls_receive, nb::arg("fd"), nb::arg("target"), nb::arg("rounds"), nb::arg("certificate"),
          nb::arg("key"), nb::arg("timeout"),
          "Accepts a session with a certificate (DER) and its Ed25519 key, receives into `target` until it is full and "
          "answers with one byte, `rounds` times.");
}

} // namespace floors
