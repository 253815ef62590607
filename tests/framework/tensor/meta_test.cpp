// SPDX-License-Identifier: Apache-2.0
#include "framework/tensor/meta.h"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "framework/runtime/arena.h"
#include "framework/runtime/rank_context.h"
#include "framework/tensor/fill.h"
#include "tests/testing.h"

namespace moegrad::meta_test {
namespace {

using test::message_of;

constexpr const char* kNoBytes =
    "tensor: '(unnamed)' has no bytes yet: it was made on the meta device; call to_empty()";

/// Every way to make a tensor.
std::vector<Tensor> one_of_each() {
  return {Tensor::empty({2, 3}),
          Tensor::zeros({2, 3}),
          Tensor::ones({2, 3}, Dtype::kFloat64),
          Tensor::full({2, 3}, 7.0, Dtype::kBFloat16),
          Tensor::from(std::vector<std::int64_t>{1, 2}, {2}),
          Tensor::empty_nz({2, 3}, {1, 2, 3}, Dtype::kFloat32)};
}

TEST(Meta, TensorsHaveShapeAndDtypeButTakeNoMemory) {
  RankContext context;
  const RankContextGuard rank(context);
  context.arena()->set_budget(1);
  const MetaGuard meta;
  const auto tensors = one_of_each();
  for (const auto& tensor : tensors) EXPECT_TRUE(tensor.is_meta());
  EXPECT_EQ(tensors[1].shape(), (Shape{2, 3}));
  EXPECT_EQ(tensors[2].dtype(), Dtype::kFloat64);
  EXPECT_EQ(tensors[3].storage().bytes(), 12);
  EXPECT_EQ(tensors[5].layout(), Layout::kNZ);
  EXPECT_EQ(context.arena()->peak().total(), 0);
  EXPECT_EQ(context.arena()->system_allocations(), 0);
}

TEST(Meta, TensorsMayBeLargerThanAnyMemory) {
  const MetaGuard meta;
  const Tensor tensor = Tensor::ones({std::int64_t{1} << 30, std::int64_t{1} << 30});
  EXPECT_EQ(tensor.storage().bytes(), std::int64_t{1} << 62);
}

TEST(Meta, ViewsOfOneAreMetaUntilItHasBytes) {
  Tensor tensor, view;
  {
    const MetaGuard meta;
    tensor = Tensor::zeros({4});
  }
  view = Tensor::as_strided(tensor.detach(), {2}, {1}, 2);
  EXPECT_TRUE(view.is_meta());
  tensor.storage().refill();
  EXPECT_FALSE(view.is_meta());
  fill_(tensor, 3.0);
  EXPECT_EQ(view.data<float>()[1], 3);
}

TEST(Meta, ReadingAndWritingSaysThatThereAreNoBytesYet) {
  const MetaGuard meta;
  for (Tensor tensor : one_of_each()) {
    EXPECT_EQ(message_of<Error>([&] { tensor.storage().data(); }), kNoBytes);
  }
  Tensor tensor = Tensor::zeros({1});
  EXPECT_EQ(message_of<Error>([&] { tensor.data<float>(); }), kNoBytes);
  EXPECT_EQ(message_of<Error>([&] { tensor.item(); }), kNoBytes);
  EXPECT_EQ(message_of<Error>([&] { fill_(tensor, 1.0); }), kNoBytes);
  EXPECT_EQ(message_of<Error>([&] { clone(tensor); }), kNoBytes);
  tensor.storage().set_name("model.norm.weight");
  EXPECT_EQ(message_of<Error>([&] { tensor.data<float>(); }),
            "tensor: 'model.norm.weight' has no bytes yet: it was made on the meta device; call "
            "to_empty()");
}

TEST(Meta, ReleasedIsAnotherState) {
  const MetaGuard meta;
  Storage storage(8);
  EXPECT_TRUE(storage.is_meta());
  EXPECT_FALSE(storage.released());
  storage.refill();
  EXPECT_FALSE(storage.is_meta());
  EXPECT_FALSE(storage.released());
  storage.release();
  EXPECT_FALSE(storage.is_meta());
  EXPECT_TRUE(storage.released());

  Storage never_filled(8);
  never_filled.release();
  EXPECT_FALSE(never_filled.is_meta());
  EXPECT_TRUE(never_filled.released());
  EXPECT_EQ(message_of<Error>([&] { never_filled.data(); }),
            "tensor: the bytes of '(unnamed)' have been released; unshard its module before "
            "reading it");
  never_filled.refill();
  EXPECT_NE(never_filled.data(), nullptr);
}

TEST(Meta, BytesComeFromTheRankThatGivesThem) {
  RankContext maker, user;
  Tensor tensor;
  {
    const RankContextGuard rank(maker);
    const MetaGuard meta;
    const MemoryTagGuard tag(MemoryTag::kOptimizer);
    tensor = Tensor::zeros({3});
  }
  {
    const RankContextGuard rank(user);
    tensor.storage().refill();
  }
  EXPECT_EQ(maker.arena()->peak().total(), 0);
  EXPECT_EQ(user.arena()->live()[MemoryTag::kOptimizer], 12);
  tensor.storage().release();
  tensor.storage().refill();
  EXPECT_EQ(user.arena()->live().total(), 12);
  tensor = Tensor();
  EXPECT_EQ(user.arena()->live().total(), 0);
}

TEST(Meta, GuardsNestAndEndWithTheirScope) {
  EXPECT_FALSE(meta_enabled());
  {
    const MetaGuard outer;
    EXPECT_TRUE(Tensor::ones({2}).is_meta());
    {
      const MetaGuard inner(false);
      EXPECT_EQ(Tensor::ones({1}).item(), 1);
    }
    EXPECT_TRUE(Tensor::ones({2}).is_meta());
  }
  EXPECT_FALSE(Tensor::ones({2}).is_meta());
  EXPECT_THROW(
      {
        const MetaGuard meta;
        throw std::runtime_error("out of scope");
      },
      std::runtime_error);
  EXPECT_FALSE(meta_enabled());
}

TEST(Meta, AGuardIsOfItsThreadAlone) {
  const MetaGuard meta;
  bool other = true;
  std::thread([&] {
    RankContext context;
    const RankContextGuard guard(context);
    other = Tensor::ones({2}).is_meta();
    const MetaGuard own(false);
  }).join();
  EXPECT_FALSE(other);
  EXPECT_TRUE(meta_enabled());
}

TEST(Meta, LeavesTensorsThatHaveBytes) {
  Tensor tensor = Tensor::ones({2});
  const MetaGuard meta;
  EXPECT_FALSE(tensor.is_meta());
  EXPECT_FALSE(tensor.detach().is_meta());
  fill_(tensor, 5.0);
  EXPECT_EQ(tensor.data<float>()[1], 5);
}

}  // namespace
}  // namespace moegrad::meta_test
