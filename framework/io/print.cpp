// SPDX-License-Identifier: Apache-2.0
#include "framework/io/print.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <sstream>
#include <utility>
#include <vector>

#include "framework/autograd/function.h"
#include "framework/distributed/shard_spec.h"

namespace moegrad {
namespace {

constexpr std::int64_t kEdgeItems = 3;  // shown at either end of a shortened dimension
constexpr std::int64_t kThreshold = 1000;
constexpr std::int64_t kLineWidth = 80;
constexpr std::int64_t kDigits = 4, kMostDigits = 17;  // after the point
constexpr std::int64_t kPrecisionOfStreams = 6;        // unless it is set

// The elements of a tensor of any strides, layout and dtype, by row-major index.
class Elements {
 public:
  explicit Elements(const Tensor& tensor) : tensor_(tensor), bytes_(tensor.storage().data()) {}

  bool real() const { return holds_reals(tensor_.dtype()); }

  double number(std::int64_t flat) const {
    const auto at = position(flat);
    if (tensor_.dtype() == Dtype::kFloat64) return as<double>()[at];
    if (tensor_.dtype() == Dtype::kFloat32) return as<float>()[at];
    return static_cast<double>(as<BFloat16>()[at]);
  }

  std::string text_of_integer(std::int64_t flat) const {
    const auto at = position(flat);
    if (tensor_.dtype() == Dtype::kBool) return as<bool>()[at] ? "True" : "False";
    if (tensor_.dtype() == Dtype::kInt32) return std::to_string(as<std::int32_t>()[at]);
    if (tensor_.dtype() == Dtype::kInt8) return std::to_string(as<std::int8_t>()[at]);
    return std::to_string(as<std::int64_t>()[at]);
  }

 private:
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(bytes_);
  }

  std::int64_t position(std::int64_t flat) const {
    if (tensor_.layout() == Layout::kNZ) {
      const auto& blocks = tensor_.nz_blocks();
      const auto matrix = blocks.k * blocks.n;
      const auto k = flat % matrix / blocks.n, n = flat % blocks.n;
      return tensor_.offset() + flat / matrix * nz_numel(blocks.k, blocks.n, tensor_.dtype()) +
             (tensor_.dtype() == Dtype::kBFloat16
                  ? nz_offset(k, n, blocks, tensor_.storage().nz_pairs())
                  : nz_offset(k, n, blocks.k));
    }
    auto offset = tensor_.offset();
    for (std::int64_t i = tensor_.ndim() - 1; i >= 0; --i) {
      offset += flat % tensor_.dim(i) * tensor_.strides()[i];
      flat /= tensor_.dim(i);
    }
    return offset;
  }

  const Tensor& tensor_;
  const std::byte* bytes_;
};

template <class... Numbers>
std::string printed(const char* format, Numbers... numbers) {
  std::array<char, 400> text{};  // the longest double has 309 digits
  std::snprintf(text.data(), text.size(), format, numbers...);
  return text.data();
}

// How all numbers of a tensor are written, by the rules of PyTorch's torch/_tensor_str.py: whole
// numbers as "1.", others with `digits` after the point, with an exponent where the largest is
// over 1e8 or over 1000 times the smallest, or the smallest is under 1e-4; all of one width.
class Format {
 public:
  Format(const Elements& elements, const std::vector<std::int64_t>& shown, std::int64_t digits)
      : elements_(elements),
        digits_(static_cast<int>(std::clamp<std::int64_t>(digits, 0, kMostDigits))) {
    bool whole = true;
    double least = std::numeric_limits<double>::infinity(), most = 0;
    for (const auto flat : shown) {
      if (!elements.real()) continue;
      const auto number = elements.number(flat);
      if (!std::isfinite(number) || number == 0) continue;
      least = std::min(least, std::abs(number));
      most = std::max(most, std::abs(number));
      whole = whole && number == std::ceil(number);
    }
    const bool wide = most > 0 && (most / least > 1000 || most > 1e8);
    if (wide || (!whole && least < 1e-4)) {
      style_ = Style::kExponent;
    } else {
      style_ = whole ? Style::kWhole : Style::kFixed;
    }
    for (const auto flat : shown) {
      // PyTorch takes no notice of zeros and numbers that are not finite here.
      if (elements.real() &&
          (!std::isfinite(elements.number(flat)) || elements.number(flat) == 0)) {
        continue;
      }
      width_ = std::max(width_, text(flat).size());
    }
  }

  std::size_t width() const { return width_; }

  std::string operator()(std::int64_t flat) const {
    auto padded = text(flat);
    padded.insert(0, width_ - std::min(width_, padded.size()), ' ');
    return padded;
  }

 private:
  enum class Style { kWhole, kFixed, kExponent };

  std::string text(std::int64_t flat) const {
    if (!elements_.real()) return elements_.text_of_integer(flat);
    const auto number = elements_.number(flat);
    if (std::isnan(number)) return "nan";  // printf shows the sign that computed ones may have
    if (style_ == Style::kExponent) return printed("%.*e", digits_, number);
    if (style_ == Style::kFixed) return printed("%.*f", digits_, number);
    return printed("%.0f", number) + (std::isfinite(number) ? "." : "");
  }

  const Elements& elements_;
  int digits_;
  Style style_ = Style::kWhole;
  std::size_t width_ = 1;
};

class Printer {
 public:
  Printer(const Tensor& tensor, std::int64_t indent, std::int64_t threshold, std::int64_t digits)
      : shape_(tensor.shape()),
        inner_(row_major_strides(tensor.shape())),
        indent_(indent),
        shortened_(tensor.numel() > threshold),
        elements_(tensor),
        format_(elements_, shown(), digits) {}

  std::string text() const { return text(0, 0); }

 private:
  // Calls `element` with each index along `axis` that is shown, and `gap` where some are left out.
  template <class Element, class Gap>
  void along(std::int64_t axis, const Element& element, const Gap& gap) const {
    const auto size = shape_[axis];
    for (std::int64_t i = 0; i < size; ++i) {
      if (shortened_ && size > 2 * kEdgeItems && i == kEdgeItems) {
        gap();
        i = size - kEdgeItems;
      }
      element(i);
    }
  }

  std::vector<std::int64_t> shown() const {
    std::vector<std::int64_t> flats{0};
    for (std::int64_t axis = 0; axis < shape_.ndim(); ++axis) {
      std::vector<std::int64_t> longer;
      for (const auto flat : flats) {
        along(
            axis, [&](std::int64_t i) { longer.push_back(flat + i * inner_[axis]); }, [] {});
      }
      flats = std::move(longer);
    }
    return flats;
  }

  // The elements that begin at `flat`, along dimension `axis` and all later ones.
  std::string text(std::int64_t axis, std::int64_t flat) const {
    if (axis == shape_.ndim()) return format_(flat);
    const bool innermost = axis + 1 == shape_.ndim();
    std::vector<std::string> parts;
    along(
        axis,
        [&](std::int64_t i) {
          const auto at = flat + i * inner_[axis];
          parts.push_back(innermost ? format_(at) : text(axis + 1, at));
        },
        [&] { parts.emplace_back(innermost ? " ..." : "..."); });
    const auto indent = static_cast<std::size_t>(indent_ + axis);
    const auto line_break = std::string(",\n").append(indent + 1, ' ');
    // A blank line between matrices, two between blocks of matrices, and so on.
    const auto levels = static_cast<std::size_t>(shape_.ndim() - axis - 1);
    const auto between = std::string(",").append(levels, '\n').append(indent + 1, ' ');
    const auto per_line = innermost ? parts_per_line(indent) : 1;
    std::string all = "[";
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (i > 0) all += !innermost ? between : i % per_line == 0 ? line_break : ", ";
      all += parts[i];
    }
    return all + ']';
  }

  std::size_t parts_per_line(std::size_t indent) const {
    const std::size_t room = kLineWidth - std::min<std::size_t>(indent, kLineWidth);
    return std::max<std::size_t>(1, room / (format_.width() + 2));
  }

  Shape shape_, inner_;
  std::int64_t indent_;
  bool shortened_;
  Elements elements_;
  Format format_;
};

std::vector<std::string> properties(const Tensor& tensor) {
  const auto text = [](const auto&... parts) {
    std::ostringstream stream;
    (stream << ... << parts);
    return stream.str();
  };
  std::vector<std::string> all;
  if (tensor.is_meta()) {
    all.emplace_back("meta");
  } else if (tensor.storage().released()) {
    all.emplace_back("released");
  }
  all.push_back(text("shape=", tensor.shape()));
  all.push_back(text("dtype=", tensor.dtype()));
  all.push_back(text("layout=", tensor.layout()));
  if (const auto& spec = tensor.shard_spec()) all.push_back(text("shard=", part_text(*spec)));
  if (const auto& function = tensor.grad_fn()) {
    all.push_back(text("grad_fn=<", function->name(), ">"));
  } else if (tensor.requires_grad()) {
    all.emplace_back("requires_grad=True");
  }
  return all;
}

}  // namespace

std::string elements_text(const Tensor& tensor, std::int64_t indent, std::int64_t threshold,
                          std::int64_t digits) {
  if (tensor.numel() == 0) return "[]";
  return Printer(tensor, indent, threshold, digits).text();
}

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  if (!tensor.defined()) return out << "tensor(undefined)";
  const std::string prefix = "tensor(";
  const bool has_bytes = !tensor.is_meta() && !tensor.storage().released();
  const std::int64_t digits = out.precision() == kPrecisionOfStreams ? kDigits : out.precision();
  std::string all =
      prefix + (has_bytes ? elements_text(tensor, std::ssize(prefix), kThreshold, digits) : "...");
  auto column = all.size() - (all.rfind('\n') + 1) + 2;  // npos + 1 is 0
  for (const auto& property : properties(tensor)) {
    if (column + property.size() + 2 > kLineWidth) {
      all += ",\n";
      all.append(prefix.size(), ' ') += property;
      column = prefix.size() + property.size();
    } else {
      all += ", " + property;
      column += property.size() + 2;
    }
  }
  return out << all + ')';
}

}  // namespace moegrad
