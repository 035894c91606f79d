// The entry point of the native tests, and what they say while they run; every other file here holds cases only.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>

namespace {

// doctest itself says nothing before the end, minutes later under a sanitizer.
struct Progress : doctest::IReporter {
    using Clock = std::chrono::steady_clock;

    explicit Progress(const doctest::ContextOptions& /*options*/) {}
    void report_query(const doctest::QueryData& /*data*/) override {}
    void test_run_start() override { said_ = Clock::now(); }
    void test_run_end(const doctest::TestRunStats& /*stats*/) override {}
    void test_case_start(const doctest::TestCaseData& test) override {
        begun_++;
        if (Clock::now() - said_ >= std::chrono::seconds(10)) {
            said_ = Clock::now();
            std::fprintf(stderr, "zerohop: native test %d: %s\n", begun_, test.m_name);
        }
    }
    void test_case_reenter(const doctest::TestCaseData& /*test*/) override {}
    void test_case_end(const doctest::CurrentTestCaseStats& /*stats*/) override {}
    void test_case_exception(const doctest::TestCaseException& /*exception*/) override {}
    void subcase_start(const doctest::SubcaseSignature& /*subcase*/) override {}
    void subcase_end() override {}
    void log_assert(const doctest::AssertData& /*data*/) override {}
    void log_message(const doctest::MessageData& /*data*/) override {}
    void test_case_skipped(const doctest::TestCaseData& /*test*/) override {}

private:
    Clock::time_point said_;
    int begun_ = 0;
};

REGISTER_LISTENER("progress", 1, Progress);

} // namespace
