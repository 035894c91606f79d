// One side of a TLS 1.3 connection, whose encrypted bytes the caller carries: OpenSSL touches no socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct bio_st;
struct ssl_st;

namespace zerohop::tcp {

// Python packs the settings of one side of a socket (core/control/tls.py) as: 'd' for the side that dials or 'l' for
// the one that listens, the seed of its Ed25519 key, the length of its certificate in two bytes, its certificate, the
// certificate that it trusts, and the socket's name in hexadecimal digits. The dialling side sends the name, which TLS
// protects, and the other takes no other name: somebody in between could else exchange the sockets of two lanes, whose
// certificates are the same.
inline constexpr size_t kSeedBytes = 32;
inline constexpr size_t kNameBytes = 32;

// Not thread-safe.
class TlsSession {
public:
    // Bytes to send under one key: far below what AES-GCM may encrypt with one.
    static constexpr uint64_t kRekeyBytes = uint64_t{64} << 30;

    // Throws NativeError if OpenSSL is missing, or refuses the settings.
    explicit TlsSession(std::string_view settings, uint64_t rekey_bytes = kRekeyBytes);
    ~TlsSession();
    TlsSession(const TlsSession&) = delete;
    TlsSession& operator=(const TlsSession&) = delete;

    // Goes on with the handshake as far as there are bytes for it.
    void shake_hands();
    [[nodiscard]] bool established() const { return established_; }
    // True once the other side's certificate was refused, or ours, or bytes were changed on their way.
    [[nodiscard]] bool failed() const { return failed_; }

    // Decrypts into memory; 0: there are no more bytes, or it has failed.
    [[nodiscard]] size_t read(void* to, size_t nbytes);
    // Encrypts all of the bytes; false: it has failed.
    [[nodiscard]] bool write(const void* from, size_t nbytes);
    // Takes encrypted bytes that have arrived.
    void feed(const void* bytes, size_t nbytes);
    // Hands out encrypted bytes that are to be sent.
    [[nodiscard]] size_t take(void* to, size_t nbytes);
    [[nodiscard]] bool has_output() const;
    // True if read() may find bytes without a feed().
    [[nodiscard]] bool has_input() const;

private:
    struct Free {
        void operator()(ssl_st* session) const;
    };
    bool ok(int result);
    [[nodiscard]] bool name_fits();

    std::unique_ptr<ssl_st, Free> ssl_;
    bio_st* in_ = nullptr; // of ssl_
    bio_st* out_ = nullptr;
    std::string name_;
    bool dials_ = false;
    uint64_t rekey_bytes_;
    uint64_t under_this_key_ = 0;
    bool established_ = false;
    bool failed_ = false;
};

} // namespace zerohop::tcp
