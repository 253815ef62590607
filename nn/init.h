// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "nn/module.h"

namespace moegrad::nn {

/// Note [Initial values by global element]
/// Element i of a parameter is a pure function of (seed, the parameter's full name, i), where i is
/// its position in the global tensor in Hugging Face's orientation: stacked experts count as
/// [E, out, in] however they are stored. So neither the number of ranks nor the storage
/// orientation changes a weight.

/// Fills the parameter with normal(0, std); a shard gets its part of the whole.
void init_normal(const ParameterSlot& slot, std::uint64_t seed, double std);

/// Note [Who initialises a parameter]
/// The layer that registers a parameter declares what init_weights writes: InitialValues::normal(),
/// zeros(), kaiming_uniform() and so on. The layers of this library do the same as Hugging Face's:
/// weights of linear layers, embeddings, routers and experts are normal, weights of norms are one,
/// biases zero.
///
/// If a layer declares nothing, a parameter of two or more dimensions counts as a weight and gets
/// normal(0, std). A parameter of fewer dimensions may be a bias, a norm's weight or a scale. As in
/// PyTorch it keeps its values, at first those of its constructor. On the meta device a constructor
/// gives no values, so there such a parameter must be declared.

/// Initialises all parameters (Note [Who initialises a parameter]), and buffers whose layer
/// declares values. `std` is used if normal() has
/// none of its own. A tied parameter is initialised once, as its first name declares. Reshards the
/// module first.
///
/// ValueError unless `std` is finite and >= 0. Error, and nothing has been written, for a parameter
/// without bytes (Module::to_empty), for a parameter without declaration that was made on the meta
/// device with fewer than two dimensions, and for a buffer that was made there and has not been
/// filled. ShapeError for a declaration by fan_in or fan_out of a parameter with fewer than two
/// dimensions.
void init_weights(Module& module, std::uint64_t seed, double std);

/// Initialises one parameter, by its full name within `module`, in place of what its layer
/// declares:
///
///     nn::init_weights(model, seed, 0.02);
///     nn::init_parameter(model, "head.weight", nn::InitialValues::xavier_uniform(), seed);
///
/// fan_in and fan_out are those of a weight in Hugging Face's orientation [out, in]. Stacked
/// experts count as one matrix each, gate_up_proj as gate_proj and up_proj. A tied parameter may be
/// given by any of its names; the values are those of its first. Reshards the module first.
///
/// ValueError, and nothing has been written, if there is no such parameter, if `values` declares
/// nothing, and for normal() without a std. Otherwise as init_weights().
void init_parameter(Module& module, std::string_view name, const InitialValues& values,
                    std::uint64_t seed);

}  // namespace moegrad::nn
