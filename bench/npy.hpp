// SPDX-License-Identifier: Apache-2.0
// Reads one array from a NumPy .npy file (format versions 1 to 3; float16, float32, float64 or uint8; little endian; C order).
// Whatever else a file holds is refused with one sentence that names the file: nothing is guessed, nothing is read past the end.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace bench {

static_assert(std::endian::native == std::endian::little, "npy.hpp copies the file's little-endian numbers as they lie");

enum class npy_type { float16, float32, float64, uint8 };

struct npy_array {
  npy_type type{};
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;

  // Every number, in file order, converted to T.
  template <class T>
  std::vector<T> as() const;
};

namespace npy_detail {

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
    case npy_type::uint8:
      return npy_detail::convert<std::uint8_t, T>(bytes, same);
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
  std::uintmax_t item = 0;
  if (type.starts_with("'<f2'")) {
    array.type = npy_type::float16;
    item = 2;
  } else if (type.starts_with("'<f4'")) {
    array.type = npy_type::float32;
    item = 4;
  } else if (type.starts_with("'<f8'")) {
    array.type = npy_type::float64;
    item = 8;
  } else if (type.starts_with("'|u1'")) {
    array.type = npy_type::uint8;
    item = 1;
  } else {
    const std::string name(type.substr(0, type.empty() ? 0 : type.find_first_of(",}")));
    fail("has dtype " + (name.empty() ? "(none)" : name) + ", known are '<f2', '<f4', '<f8' and '|u1'");
  }
  const std::string_view order = npy_detail::value_of(header, "'fortran_order'");
  if (order.starts_with("True")) fail("is stored in Fortran order; save numpy.ascontiguousarray(x) instead");
  if (!order.starts_with("False")) fail("has a header without fortran_order");
  if (!npy_detail::parse_shape(npy_detail::value_of(header, "'shape'"), array.shape)) fail("has a header without a valid shape");

  std::uintmax_t data_bytes = item;
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
  return array;
}

}  // namespace bench
