// SPDX-License-Identifier: Apache-2.0
// Reads one array from a NumPy .npy file (format versions 1 to 3; floating-point numbers of 16, 32 or 64 bits, integers of 8 to 64,
// little endian; Fortran order is turned into C order). Whatever else a file holds is refused with one sentence that names the
// file: nothing is guessed, nothing is read past the end.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace bench {

static_assert(std::endian::native == std::endian::little, "npy.hpp copies the file's little-endian numbers as they lie");

enum class npy_type { float16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64 };

struct npy_array {
  npy_type type{};
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;

  // Every number, the last axis varying fastest, converted to T.
  template <class T>
  std::vector<T> as() const;
};

namespace npy_detail {

struct type_name {
  std::string_view in_file;
  npy_type type;
  std::size_t bytes;
};

inline constexpr type_name type_names[] = {
    {"'<f2'", npy_type::float16, 2}, {"'<f4'", npy_type::float32, 4}, {"'<f8'", npy_type::float64, 8},
    {"'|i1'", npy_type::int8, 1},    {"'<i2'", npy_type::int16, 2},   {"'<i4'", npy_type::int32, 4},
    {"'<i8'", npy_type::int64, 8},   {"'|u1'", npy_type::uint8, 1},   {"'<u2'", npy_type::uint16, 2},
    {"'<u4'", npy_type::uint32, 4},  {"'<u8'", npy_type::uint64, 8}};

inline float from_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const float sign = (bits >> 15) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) {
    return fraction != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * std::numeric_limits<float>::infinity();
  }
  const int significand = exponent == 0 ? fraction : fraction + 1024;
  return sign * std::ldexp(static_cast<float>(significand), (exponent == 0 ? 1 : exponent) - 25);
}

template <class From, class T, class Convert>
std::vector<T> convert(const std::vector<std::byte>& bytes, Convert to) {
  std::vector<T> result(bytes.size() / sizeof(From));
  for (std::size_t i = 0; i < result.size(); ++i) {
    From x;
    std::memcpy(&x, bytes.data() + i * sizeof(From), sizeof(From));
    result[i] = static_cast<T>(to(x));
  }
  return result;
}

// The same array with its last axis varying fastest, from one whose first axis does.
inline std::vector<std::byte> from_fortran_order(const std::vector<std::byte>& bytes, const std::vector<std::int64_t>& shape,
                                                 std::size_t item) {
  std::vector<std::byte> result(bytes.size());
  std::vector<std::size_t> index(shape.size(), 0);
  for (std::size_t to = 0; to < bytes.size(); to += item) {
    std::size_t from = 0;
    for (std::size_t axis = shape.size(); axis-- > 0;) from = from * static_cast<std::size_t>(shape[axis]) + index[axis];
    std::memcpy(result.data() + to, bytes.data() + from * item, item);
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      if (++index[axis] < static_cast<std::size_t>(shape[axis])) break;
      index[axis] = 0;
    }
  }
  return result;
}

// The text after a quoted key and its colon in the header's Python dictionary; empty if the key is not there.
inline std::string_view value_of(std::string_view header, std::string_view key) {
  std::size_t at = header.find(key);
  if (at == header.npos) return {};
  at = header.find_first_not_of(' ', at + key.size());
  if (at == header.npos || header[at] != ':') return {};
  at = header.find_first_not_of(' ', at + 1);
  return at == header.npos ? std::string_view{} : header.substr(at);
}

// "(3, 4096, 64)", "(7,)" or "()"; false if it is none of these or an extent does not fit 64 bits.
inline bool parse_shape(std::string_view text, std::vector<std::int64_t>& shape) {
  if (text.empty() || text.front() != '(') return false;
  std::int64_t extent = -1;
  for (const char c : text.substr(1)) {
    if (c >= '0' && c <= '9') {
      if (extent > (std::numeric_limits<std::int64_t>::max() - 9) / 10) return false;
      extent = (extent < 0 ? 0 : extent) * 10 + (c - '0');
    } else if (c == ',' || c == ')') {
      if (extent >= 0) shape.push_back(extent);
      if (c == ')') return true;
      if (extent < 0) return false;
      extent = -1;
    } else if (c != ' ') {
      return false;
    }
  }
  return false;
}

}  // namespace npy_detail

template <class T>
std::vector<T> npy_array::as() const {
  const auto same = [](auto x) { return x; };
  switch (type) {
    case npy_type::float16:
      return npy_detail::convert<std::uint16_t, T>(bytes, npy_detail::from_half);
    case npy_type::float32:
      return npy_detail::convert<float, T>(bytes, same);
    case npy_type::float64:
      return npy_detail::convert<double, T>(bytes, same);
    case npy_type::int8:
      return npy_detail::convert<std::int8_t, T>(bytes, same);
    case npy_type::int16:
      return npy_detail::convert<std::int16_t, T>(bytes, same);
    case npy_type::int32:
      return npy_detail::convert<std::int32_t, T>(bytes, same);
    case npy_type::int64:
      return npy_detail::convert<std::int64_t, T>(bytes, same);
    case npy_type::uint8:
      return npy_detail::convert<std::uint8_t, T>(bytes, same);
    case npy_type::uint16:
      return npy_detail::convert<std::uint16_t, T>(bytes, same);
    case npy_type::uint32:
      return npy_detail::convert<std::uint32_t, T>(bytes, same);
    case npy_type::uint64:
      return npy_detail::convert<std::uint64_t, T>(bytes, same);
  }
  return {};
}

inline npy_array read_npy(const std::string& path) {
  const auto fail = [&](const std::string& what) { throw std::runtime_error(path + ": " + what); };

  std::error_code error;
  const std::uintmax_t file_bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) fail("cannot be opened as a file");

  unsigned char start[12] = {};  // magic, version, and a header length of two (version 1) or four bytes
  file.read(reinterpret_cast<char*>(start), 10);
  if (!file || std::memcmp(start, "\x93NUMPY", 6) != 0) fail("is not a .npy file");
  const int version = start[6];
  if (version < 1 || version > 3) fail("has .npy version " + std::to_string(version) + ", known are 1 to 3");
  if (version > 1) file.read(reinterpret_cast<char*>(start + 10), 2);
  const std::uintmax_t prefix = version == 1 ? 10 : 12;
  std::uintmax_t header_bytes = 0;
  for (std::uintmax_t i = prefix; i-- > 8;) header_bytes = header_bytes * 256 + start[i];
  if (!file || header_bytes > file_bytes - prefix) fail("ends inside its header");
  std::string header(header_bytes, '\0');
  file.read(header.data(), static_cast<std::streamsize>(header_bytes));
  if (!file) fail("ends inside its header");

  npy_array array;
  const std::string_view type = npy_detail::value_of(header, "'descr'");
  const auto* const known = std::find_if(std::begin(npy_detail::type_names), std::end(npy_detail::type_names),
                                         [&](const npy_detail::type_name& name) { return type.starts_with(name.in_file); });
  if (known == std::end(npy_detail::type_names)) {
    const std::string name(type.substr(0, type.empty() ? 0 : type.find_first_of(",}")));
    fail("has dtype " + (name.empty() ? "(none)" : name) +
         ", known are float16, float32, float64 and integers of 8 to 64 bits, little endian");
  }
  array.type = known->type;
  const std::string_view order = npy_detail::value_of(header, "'fortran_order'");
  const bool first_axis_fastest = order.starts_with("True");
  if (!first_axis_fastest && !order.starts_with("False")) fail("has a header without fortran_order");
  if (!npy_detail::parse_shape(npy_detail::value_of(header, "'shape'"), array.shape)) fail("has a header without a valid shape");

  std::uintmax_t data_bytes = known->bytes;
  for (const std::int64_t extent : array.shape) {
    const auto n = static_cast<std::uintmax_t>(extent);
    if (n != 0 && data_bytes > std::numeric_limits<std::uintmax_t>::max() / n) fail("has a shape too large to exist");
    data_bytes *= n;
  }
  const std::uintmax_t rest = file_bytes - prefix - header_bytes;
  if (rest != data_bytes) {
    fail("holds " + std::to_string(rest) + " bytes of data, its header promises " + std::to_string(data_bytes));
  }
  array.bytes.resize(data_bytes);
  file.read(reinterpret_cast<char*>(array.bytes.data()), static_cast<std::streamsize>(data_bytes));
  if (!file) fail("could not be read to its end");
  if (first_axis_fastest) array.bytes = npy_detail::from_fortran_order(array.bytes, array.shape, known->bytes);
  return array;
}

}  // namespace bench
