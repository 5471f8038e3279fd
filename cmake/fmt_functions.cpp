// The functions of libfmt that are no templates, and its templates that are declared `extern`,
// compiled once: as inline functions they cost every file that formats more time than its own code.
// Debian's libfmt is a shared library only, and the plugin must not depend on the one of the
// process that loads it.
#include <fmt/format-inl.h>

namespace fmt::detail {

template dragonbox::decimal_fp<float> dragonbox::to_decimal(float) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal(double) noexcept;
template thousands_sep_result<char> thousands_sep_impl(locale_ref);
template char decimal_point_impl(locale_ref);
template void buffer<char>::append(const char*, const char*);

}  // namespace fmt::detail
