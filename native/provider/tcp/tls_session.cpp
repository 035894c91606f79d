#include "provider/tcp/tls_session.hpp"

#include "base/status.hpp"
#include "shim/openssl.hpp"

#include <algorithm>
#include <climits>
#include <string>

namespace zerohop::tcp {

namespace {

[[noreturn]] void refuse(const std::string& why) {
    throw NativeError(Status::unsupported, Reason::none, "no TLS for this lane: " + why);
}

const shim::OpenSsl& openssl() {
    const auto& loaded = shim::openssl();
    if (!loaded) {
        refuse(loaded.why_not());
    }
    return *loaded;
}

struct FreeContext {
    void operator()(ssl_ctx_st* context) const { openssl().context_free(context); }
};
struct FreeCertificate {
    void operator()(x509_st* certificate) const { openssl().certificate_free(certificate); }
};
struct FreeKey {
    void operator()(evp_pkey_st* key) const { openssl().key_free(key); }
};
using Context = std::unique_ptr<ssl_ctx_st, FreeContext>;
using Certificate = std::unique_ptr<x509_st, FreeCertificate>;
using Key = std::unique_ptr<evp_pkey_st, FreeKey>;

const unsigned char* unsigned_of(std::string_view bytes) {
    return reinterpret_cast<const unsigned char*>(bytes.data());
}

Certificate certificate_of(std::string_view der) {
    const unsigned char* at = unsigned_of(der);
    return Certificate(openssl().read_certificate(nullptr, &at, static_cast<long>(der.size())));
}

Context context_of(std::string_view seed, std::string_view own, std::string_view trusted) {
    const shim::OpenSsl& ssl = openssl();
    ssl.clear_errors();
    Context context(ssl.context_new(ssl.method()));
    const Certificate ours = certificate_of(own);
    const Certificate theirs = certificate_of(trusted);
    const Key key(ssl.raw_key(shim::kEd25519, nullptr, unsigned_of(seed), seed.size()));
    if (!context || !ours || !theirs || !key ||
        ssl.context_control(context.get(), shim::kSslSetLeastVersion, shim::kTls13, nullptr) != 1 ||
        ssl.context_control(context.get(), shim::kSslSetMostVersion, shim::kTls13, nullptr) != 1 ||
        // A session that is resumed would not show its certificate again.
        ssl.set_tickets(context.get(), 0) != 1 || ssl.use_certificate(context.get(), ours.get()) != 1 ||
        ssl.use_key(context.get(), key.get()) != 1 || ssl.trust(ssl.trusted(context.get()), theirs.get()) != 1) {
        refuse("OpenSSL does not take the certificates");
    }
    ssl.set_verify(context.get(), shim::kSslVerifyPeer | shim::kSslFailWithoutPeerCertificate, nullptr);
    return context;
}

} // namespace

void TlsSession::Free::operator()(ssl_st* session) const {
    openssl().session_free(session);
}

TlsSession::TlsSession(std::string_view settings, uint64_t rekey_bytes) : rekey_bytes_(rekey_bytes) {
    constexpr size_t kHead = 1 + kSeedBytes + 2;
    const shim::OpenSsl& ssl = openssl();
    if (settings.size() < kHead + kNameBytes) {
        refuse("the settings are too short");
    }
    name_ = settings.substr(settings.size() - kNameBytes);
    settings.remove_suffix(kNameBytes);
    const unsigned char* const length = unsigned_of(settings) + 1 + kSeedBytes;
    const size_t own = (size_t{length[0]} << 8U) | length[1];
    if (settings.size() - kHead < own) {
        refuse("the settings are too short");
    }
    // OpenSSL's session refers to the context by itself.
    const Context context =
        context_of(settings.substr(1, kSeedBytes), settings.substr(kHead, own), settings.substr(kHead + own));
    ssl_.reset(ssl.session_new(context.get()));
    in_ = ssl.bio_new(ssl.memory());
    out_ = ssl.bio_new(ssl.memory());
    if (!ssl_ || in_ == nullptr || out_ == nullptr) {
        ssl.bio_free(in_);
        ssl.bio_free(out_);
        refuse("out of memory");
    }
    ssl.set_bios(ssl_.get(), in_, out_);
    dials_ = settings[0] == 'd';
    (dials_ ? ssl.will_dial : ssl.will_listen)(ssl_.get());
    if (dials_ &&
        ssl.session_control(ssl_.get(), shim::kSslSetServerName, shim::kServerNameOfHost, name_.data()) != 1) {
        refuse("OpenSSL does not take the name");
    }
}

TlsSession::~TlsSession() = default;

// Notes a failure; a wait for bytes is none.
bool TlsSession::ok(int result) {
    if (result <= 0) {
        const int error = openssl().error(ssl_.get(), result);
        failed_ = failed_ || (error != shim::kSslErrorWantRead && error != shim::kSslErrorWantWrite);
    }
    return result > 0;
}

void TlsSession::shake_hands() {
    if (!established_ && !failed_) {
        openssl().clear_errors();
        established_ = ok(openssl().shake_hands(ssl_.get())) && name_fits();
    }
}

// Fails a handshake that was for another socket.
bool TlsSession::name_fits() {
    if (!dials_) {
        const char* const name = openssl().server_name(ssl_.get(), shim::kServerNameOfHost);
        failed_ = name == nullptr || name_ != name;
    }
    return !failed_;
}

size_t TlsSession::read(void* to, size_t nbytes) {
    if (!established_ || failed_ || nbytes == 0) {
        return 0;
    }
    openssl().clear_errors();
    const int got = openssl().read(ssl_.get(), to, static_cast<int>(std::min<size_t>(nbytes, INT_MAX)));
    return ok(got) ? static_cast<size_t>(got) : 0;
}

bool TlsSession::write(const void* from, size_t nbytes) {
    if (failed_) {
        return false;
    }
    openssl().clear_errors();
    under_this_key_ += nbytes;
    if (under_this_key_ > rekey_bytes_) {
        under_this_key_ = nbytes;
        if (!ok(openssl().key_update(ssl_.get(), shim::kKeyUpdateNotRequested))) {
            return false;
        }
    }
    // The memory that it writes to has always room, so that it takes all.
    failed_ = !ok(openssl().write(ssl_.get(), from, static_cast<int>(nbytes)));
    return !failed_;
}

void TlsSession::feed(const void* bytes, size_t nbytes) {
    failed_ = openssl().bio_write(in_, bytes, static_cast<int>(nbytes)) != static_cast<int>(nbytes) || failed_;
}

size_t TlsSession::take(void* to, size_t nbytes) {
    const int taken = openssl().bio_read(out_, to, static_cast<int>(std::min<size_t>(nbytes, INT_MAX)));
    return taken > 0 ? static_cast<size_t>(taken) : 0;
}

bool TlsSession::has_output() const {
    return openssl().bio_pending(out_) != 0;
}

bool TlsSession::has_input() const {
    return !failed_ && (openssl().pending(ssl_.get()) > 0 || openssl().bio_pending(in_) != 0);
}

} // namespace zerohop::tcp
