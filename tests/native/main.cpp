// The entry point of the native tests, and what they tell scripts/run_native_tests.py; every other file here holds
// cases only.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstdio>

namespace {

// Tells each test as it begins. The report of a process that dies ends some tests before the one that killed it,
// because doctest buffers it.
class Begun : public doctest::IReporter {
public:
    explicit Begun(const doctest::ContextOptions& /*options*/) {}
    void test_case_start(const doctest::TestCaseData& test) override {
        static_cast<void>(std::fprintf(stderr, "begun: %s\n", test.m_name)); // stderr has no buffer
    }

    void report_query(const doctest::QueryData& /*data*/) override {}
    void test_run_start() override {}
    void test_run_end(const doctest::TestRunStats& /*stats*/) override {}
    void test_case_reenter(const doctest::TestCaseData& /*test*/) override {}
    void test_case_end(const doctest::CurrentTestCaseStats& /*stats*/) override {}
    void test_case_exception(const doctest::TestCaseException& /*thrown*/) override {}
    void subcase_start(const doctest::SubcaseSignature& /*subcase*/) override {}
    void subcase_end() override {}
    void log_assert(const doctest::AssertData& /*assert*/) override {}
    void log_message(const doctest::MessageData& /*message*/) override {}
    void test_case_skipped(const doctest::TestCaseData& /*test*/) override {}
};

REGISTER_REPORTER("begun", 0, Begun);

} // namespace
