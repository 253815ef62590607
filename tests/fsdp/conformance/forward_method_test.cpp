// SPDX-License-Identifier: Apache-2.0

// Row 16: methods other than forward.

#include <gmock/gmock.h>

#include "tests/fsdp/conformance/event_log.h"
#include "tests/fsdp/conformance/parity.h"

namespace moegrad::fsdp::conformance::forward_method_test {
namespace {

using test::Training;
using ::testing::ElementsAre;

class Autoencoder final : public nn::Callable<Autoencoder> {
 public:
  Autoencoder() : scale(6, 6), encoder(6, 5, 4), decoder(4, 5, 6) {
    register_module("scale", scale);
    register_module("encoder", encoder);
    register_module("decoder", decoder);
    test::init_random(*this);
  }
  Tensor encode(const Tensor& x) { return encoder(scale(x)); }
  Tensor decode(const Tensor& code, double factor) { return ops::mul(decoder(code), factor); }
  Tensor forward(const Tensor& x) { return decode(encode(x), 1.0); }

  test::Affine scale;
  test::Mlp encoder, decoder;
};

void shard(Autoencoder& model, RankContext& rank) {
  const auto mesh = DeviceMesh::flat(rank.group());
  fully_shard(model.encoder, mesh);
  fully_shard(model.decoder, mesh);
  fully_shard(model, mesh);  // scale
}

TEST(Conformance, Row16_CallMethodParity) {
  const Training<Autoencoder> training = {
      .make = [] { return std::make_unique<Autoencoder>(); },
      .loss =
          [](Autoencoder& model, int iteration, int leaf) {
            const Tensor x = test::leaf_input({3, 6}, iteration, leaf);
            if (iteration % 3 == 0) return test::square_loss(model(x));
            const Tensor code = model.call_method(&Autoencoder::encode, x);
            if (iteration % 3 == 1) return test::square_loss(code);
            return test::square_loss(model.decoder.call_method(
                [](test::Mlp& decoder, const Tensor& in) {
                  return decoder.out_proj(ops::tanh(decoder.in_proj(in)));
                },
                code));
          }};
  test::expect_parity(2, training, shard);
}

// The hooks are forward's: the root is found, gathered and kept, the encoder freed again.
TEST(Conformance, Row16_CallMethodRunsTheHooksOfForward) {
  launch(2, [](RankContext& rank) {
    Autoencoder model;
    shard(model, rank);
    auto& root = *model.extension<State>();
    const auto log = test::log_events(root, {Event::kPreForward, Event::kUnshard, Event::kReshard,
                                             Event::kPostForward, Event::kPostBackward});
    const Tensor code = model.call_method(&Autoencoder::encode, test::leaf_input({3, 6}, 0, 0));
    EXPECT_THAT(log->take(),
                ElementsAre("pre_forward ", "unshard ", "pre_forward encoder", "unshard encoder",
                            "reshard encoder", "post_forward encoder", "post_forward "));
    test::square_loss(code).backward();
    // Backward gathers the encoder ahead; the decoder did not run.
    EXPECT_THAT(log->take(), ElementsAre("reshard encoder", "post_backward encoder", "reshard ",
                                         "post_backward ", "post_backward decoder"));
  });
}

}  // namespace
}  // namespace moegrad::fsdp::conformance::forward_method_test
