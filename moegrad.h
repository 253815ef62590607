// SPDX-License-Identifier: Apache-2.0
#pragma once

// What a program needs: tensors, ops, Functions of its own, layers, optimizers, fully_shard, ranks,
// checkpoints, the models. Headers that these include, such as shape.h, are not listed again. More
// is in
//
//     moegrad_diagnostics.h    traces, slow ranks, the tape as a graph, memory, printed tensors
//     moegrad_mpi.h            ranks as processes, on one host or several
//     moegrad_testing.h        gradcheck, reference implementations
//     train/train.h            the library moegrad::train, for training programs
//
// None of them includes these headers with a narrower use:
//
//     framework/autograd/gradcheck_gtest.h    gradcheck as a GoogleTest assertion
//     framework/tensor/as_eigen.h             tensors as Eigen matrices
//     ops/compat/npu_grouped_matmul.h         npu_grouped_matmul, with the arguments of NPUs

#include "framework/autograd/checkpoint.h"
#include "framework/autograd/engine.h"
#include "framework/autograd/function.h"
#include "framework/autograd/micro_batch.h"
#include "framework/distributed/collectives.h"
#include "framework/distributed/device_mesh.h"
#include "framework/distributed/gather_shards.h"
#include "framework/distributed/launch.h"
#include "framework/distributed/parallel_dims.h"
#include "framework/io/checkpoint_folders.h"
#include "framework/io/checkpoint_reader.h"
#include "framework/io/checkpoint_saver.h"
#include "framework/io/input_file.h"
#include "framework/io/output_file.h"
#include "framework/io/safetensors.h"
#include "framework/runtime/byte_stream.h"
#include "framework/runtime/out_of_memory.h"
#include "framework/runtime/parallel_for.h"
#include "framework/runtime/parse_number.h"
#include "framework/runtime/program.h"
#include "framework/runtime/random.h"
#include "framework/runtime/thread_state.h"
#include "framework/tensor/fill.h"
#include "framework/tensor/meta.h"
#include "framework/tensor/nested_values.h"
#include "framework/tensor/print.h"
#include "fsdp/fully_shard.h"
#include "fsdp/state_dict.h"
#include "models/hf_checkpoint.h"
#include "models/matrix_parameters.h"
#include "models/qwen3_moe/config_json.h"
#include "models/qwen3_moe/load_pretrained.h"
#include "models/qwen3_moe/loss.h"
#include "models/qwen3_moe/save_pretrained.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/init.h"
#include "nn/linear.h"
#include "nn/mlp.h"
#include "nn/moe.h"
#include "nn/recompute.h"
#include "nn/rms_norm.h"
#include "ops/add_rms_norm.h"
#include "ops/attention.h"
#include "ops/aux_loss.h"
#include "ops/collectives.h"
#include "ops/copies.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/grouped_matmul.h"
#include "ops/linear.h"
#include "ops/linear_cross_entropy.h"
#include "ops/matmul.h"
#include "ops/npu_gmm.h"
#include "ops/nz.h"
#include "ops/reduce.h"
#include "ops/rms_norm.h"
#include "ops/rms_norm_rope.h"
#include "ops/router.h"
#include "ops/softmax.h"
#include "ops/split_cat.h"
#include "ops/swiglu.h"
#include "ops/views.h"
#include "optim/adafactor.h"
#include "optim/adagrad.h"
#include "optim/adam.h"
#include "optim/adamw.h"
#include "optim/clip_grad_norm.h"
#include "optim/clip_grad_value.h"
#include "optim/lion.h"
#include "optim/muon.h"
#include "optim/rmsprop.h"
#include "optim/schedule.h"
#include "optim/sgd.h"
#include "optim/weight_average.h"
