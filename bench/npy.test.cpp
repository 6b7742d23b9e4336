// SPDX-License-Identifier: Apache-2.0
// The .npy reader on good files and on every kind of bad one. The files are left in the directory given: the tests of bila_compare
// use them too.
#include "npy.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

int failures = 0;
std::filesystem::path directory;

void expect(bool fact, const std::string& what) {
  if (fact) return;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
  ++failures;
}

std::string header(const std::string& type, const std::string& shape, const std::string& order = "False") {
  return "{'descr': '" + type + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

std::string prefix(int version, std::size_t header_bytes) {
  std::string text = "\x93NUMPY";
  text += static_cast<char>(version);
  text += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) text += static_cast<char>(header_bytes >> (8 * i) & 255);
  return text;
}

std::string write(const std::string& name, const std::string& content) {
  const std::string path = (directory / name).string();
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

std::string file(const std::string& name, const std::string& head, const std::string& data, int version = 1) {
  return write(name, prefix(version, head.size()) + head + data);
}

template <class T>
std::string bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

void refused(const std::string& path, const std::string& reason) {
  try {
    (void)bench::read_npy(path);
    expect(false, path + " was read, it should be refused: " + reason);
  } catch (const std::runtime_error& error) {
    const std::string words = error.what();
    expect(words.find(path) == 0, "'" + words + "' does not start with the file's name");
    expect(words.find(reason) != words.npos, "'" + words + "' does not say: " + reason);
  }
}

void good_files() {
  const std::vector<float> numbers{0, -1.5F, 2, 3, 4, 5.25F};
  for (const int version : {1, 2, 3}) {
    const auto x = bench::read_npy(file("version.npy", header("<f4", "(2, 3)"), bytes(numbers), version));
    expect(x.type == bench::npy_type::float32 && x.shape == std::vector<std::int64_t>{2, 3}, "type and shape");
    expect(x.as<float>() == numbers, "float32 values");
    expect(x.as<double>()[5] == 5.25, "float32 as double");
  }
  const auto wide = bench::read_npy(file("double.npy", header("<f8", "(1,)"), bytes(std::vector<double>{0.1})));
  expect(wide.as<double>()[0] == 0.1 && wide.as<float>()[0] == 0.1F, "float64 values");
  const auto small = bench::read_npy(file("bytes.npy", header("|u1", "(2,)"), std::string("\x00\xff", 2)));
  expect(small.as<float>()[0] == 0 && small.as<float>()[1] == 255, "uint8 values");
  const auto scalar = bench::read_npy(file("scalar.npy", header("<f4", "()"), bytes(std::vector<float>{7})));
  expect(scalar.shape.empty() && scalar.as<float>()[0] == 7, "a scalar");
  expect(bench::read_npy(file("none.npy", header("<f4", "(0, 4)"), "")).as<float>().empty(), "no elements");

  const auto from = [](const char* type, const auto& values) {
    const bench::npy_array read = bench::read_npy(file("integer.npy", header(type, "(2,)"), bytes(values)));
    return read.as<double>();
  };
  const std::vector<double> ends{-2, 100}, high{0, 200};
  expect(from("|i1", std::vector<std::int8_t>{-2, 100}) == ends, "int8 values");
  expect(from("<i2", std::vector<std::int16_t>{-2, 100}) == ends, "int16 values");
  expect(from("<i4", std::vector<std::int32_t>{-2, 100}) == ends, "int32 values");
  expect(from("<i8", std::vector<std::int64_t>{-2, 100}) == ends, "int64 values");
  expect(from("|u1", std::vector<std::uint8_t>{0, 200}) == high, "uint8 values as double");
  expect(from("<u2", std::vector<std::uint16_t>{0, 200}) == high, "uint16 values");
  expect(from("<u4", std::vector<std::uint32_t>{0, 200}) == high, "uint32 values");
  expect(from("<u8", std::vector<std::uint64_t>{0, 200}) == high, "uint64 values");

  // (2, 3, 2), the first axis fastest: element [i, j, l] is 100 i + 10 j + l.
  std::vector<float> fortran, c_order;
  for (int l = 0; l < 2; ++l)
    for (int j = 0; j < 3; ++j)
      for (int i = 0; i < 2; ++i) fortran.push_back(static_cast<float>(100 * i + 10 * j + l));
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int l = 0; l < 2; ++l) c_order.push_back(static_cast<float>(100 * i + 10 * j + l));
  const auto turned = bench::read_npy(file("fortran.npy", header("<f4", "(2, 3, 2)", "True"), bytes(fortran)));
  expect(turned.as<float>() == c_order, "Fortran order");
  expect(bench::read_npy(file("fortran_none.npy", header("<f4", "(3, 0)", "True"), "")).bytes.empty(), "Fortran order, empty");

  const std::vector<std::uint16_t> halves{0x3c00, 0xc000, 0x3555, 0x7bff, 0x0001, 0x8000, 0x7c00, 0x7e00};
  const auto half = bench::read_npy(file("half.npy", header("<f2", "(8,)"), bytes(halves))).as<float>();
  expect(half[0] == 1 && half[1] == -2 && half[2] == 1365.0F / 4096 && half[3] == 65504, "float16 normal numbers");
  expect(half[4] == 0x1p-24F && half[5] == 0 && std::signbit(half[5]), "float16 near zero");
  expect(std::isinf(half[6]) && std::isnan(half[7]), "float16 without a value");
}

void bad_files() {
  const std::string six = bytes(std::vector<float>(6, 1.0F));
  refused((directory / "absent.npy").string(), "cannot be opened");
  refused(directory.string(), "cannot be opened");
  refused(write("empty.npy", ""), "not a .npy file");
  refused(write("text.npy", "these are not the bytes of an array"), "not a .npy file");
  refused(write("cut_prefix.npy", prefix(2, 100).substr(0, 10)), "ends inside its header");
  refused(write("cut_header.npy", prefix(1, 1000) + header("<f4", "(2, 3)")), "ends inside its header");
  refused(write("huge_header.npy", prefix(2, 0xffffffff)), "ends inside its header");
  refused(file("version9.npy", header("<f4", "(2, 3)"), six, 9), "version 9");
  refused(file("truncated.npy", header("<f4", "(2, 3)"), six.substr(0, 23)), "holds 23 bytes of data, its header promises 24");
  refused(file("too_long.npy", header("<f4", "(2, 3)"), six + "x"), "holds 25 bytes of data, its header promises 24");
  refused(file("booleans.npy", header("|b1", "(24,)"), six), "dtype '|b1'");
  refused(file("big_endian.npy", header(">f4", "(2, 3)"), six), "dtype '>f4'");
  refused(file("record.npy", "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,), }\n", six), "has dtype");
  refused(file("no_type.npy", "{'fortran_order': False, 'shape': (2, 3), }\n", six), "has dtype (none)");
  refused(file("no_order.npy", "{'descr': '<f4', 'shape': (2, 3), }\n", six), "without fortran_order");
  refused(file("no_shape.npy", "{'descr': '<f4', 'fortran_order': False, }\n", six), "without a valid shape");
  refused(file("negative.npy", header("<f4", "(-2, 3)"), six), "without a valid shape");
  refused(file("open_shape.npy", header("<f4", "(2, 3"), six), "without a valid shape");
  refused(file("overflow.npy", header("<f4", "(4294967296, 4294967296)"), six), "too large");
  refused(file("wide_extent.npy", header("<f4", "(99999999999999999999,)"), six), "without a valid shape");
}

// For the tests of bila_compare: two heads of 20 tokens, and what does not go with them.
void files_for_compare() {
  const auto numbers = [](std::size_t n, float low, float step) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = low + step * static_cast<float>(i * 7919 % 101);
    return bytes(x);
  };
  file("q.npy", header("<f4", "(2, 20, 6)"), numbers(240, 0.1F, 0.01F));
  file("k.npy", header("<f4", "(2, 20, 6)"), numbers(240, 0.2F, 0.01F));
  file("v.npy", header("<f4", "(2, 20, 5)"), numbers(200, -1, 0.02F));
  file("a_token.npy", header("<f4", "(2, 20)"), numbers(40, -1, 0.005F));
  file("a_head.npy", header("<f4", "(2,)"), numbers(2, -0.1F, 0));
  file("a_positive.npy", header("<f4", "(2, 20)"), numbers(40, 0, 0.01F));
  file("a_shape.npy", header("<f4", "(3, 20)"), numbers(60, -1, 0));
  file("k_short.npy", header("<f4", "(2, 19, 6)"), numbers(228, 0.2F, 0.01F));
  file("k_narrow.npy", header("<f4", "(2, 20, 5)"), numbers(200, 0.2F, 0.01F));
  file("k_heads.npy", header("<f4", "(3, 20, 6)"), numbers(360, 0.2F, 0.01F));
  file("q_nan.npy", header("<f2", "(1, 2)"), bytes(std::vector<std::uint16_t>{0x3c00, 0x7e00}));
  file("q_huge.npy", header("<f8", "(2, 2)"), bytes(std::vector<double>{1, 2, 3, 1e300}));
  file("q_flat.npy", header("<f4", "(20,)"), numbers(20, 0, 1));
  std::vector<std::int64_t> counts(200);
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = static_cast<std::int64_t>(i * 7919 % 101) - 50;
  file("v_integers.npy", header("<i8", "(2, 20, 5)"), bytes(counts));
  // q.npy again, the first axis fastest, in the type that NumPy takes unless told otherwise.
  std::vector<double> turned;
  for (std::size_t d = 0; d < 6; ++d)
    for (std::size_t l = 0; l < 20; ++l)
      for (std::size_t h = 0; h < 2; ++h) turned.push_back(0.1 + 0.01 * static_cast<double>(((h * 20 + l) * 6 + d) * 7919 % 101));
  file("q_fortran.npy", header("<f8", "(2, 20, 6)", "True"), bytes(turned));
  file("patches.npy", header("|u1", "(1, 5, 7)"), std::string(35, 'x'));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: npy.test DIRECTORY\n"), 2;
  directory = argv[1];
  std::filesystem::create_directories(directory);
  good_files();
  bad_files();
  files_for_compare();
  return failures == 0 ? 0 : 1;
}
