// SPDX-License-Identifier: Apache-2.0
#include "nn/module.h"

#include <algorithm>
#include <unordered_set>

#include "framework/distributed/shard_spec.h"
#include "framework/runtime/grad_mode.h"
#include "framework/runtime/log.h"
#include "framework/runtime/rank_context.h"

namespace moegrad::nn {
namespace {

std::string join(const std::string& prefix, const std::string& name) {
  if (prefix.empty() || name.empty()) return prefix + name;
  return prefix + "." + name;
}

// Whether `name` is "prefix.something".
bool is_below(std::string_view name, std::string_view prefix) {
  return name.size() > prefix.size() && name[prefix.size()] == '.' && name.starts_with(prefix);
}

void check_exists_in_backward(const std::weak_ptr<const void>& alive, const std::string& path,
                              std::string_view but) {
  check(!alive.expired(), "backward: ", path.empty() ? "the module" : "module '" + path + "'",
        " no longer exists, but ", but, "; keep the model until backward has run");
}

}  // namespace

// A Tensor with one handle is in one slot. Only one with several may be tied to another, and have
// its name.
template <class Slot>
void Module::name_storages_of(const std::vector<Slot>& added) const {
  const auto& top = root();
  const bool may_be_tied = std::ranges::any_of(
      added, [](const Slot& slot) { return slot.tensor->impl().use_count() > 1; });
  if (may_be_tied) return top.name_storages();
  const auto path = path_within(top);
  for (const auto& slot : added) {
    if (slot.tensor->defined()) slot.tensor->storage().set_name(join(*path, slot.name));
  }
}

void Module::register_parameter(std::string name, Tensor& slot, ParameterLayout layout,
                                InitialValues initial) {
  check_name("register_parameter", name);
  check<UndefinedTensorError>(slot.defined(), "register_parameter: '", name, "' of ", described(),
                              " must be a defined tensor; make it before registering it");
  check<DtypeError>(
      is_floating(slot.dtype()), "register_parameter: '", name, "' of ", described(),
      " must be float32 or float64, got ", slot.dtype(),
      slot.dtype() == Dtype::kBFloat16 ? "; keep it in float32 and call compute_in()" : "");
  check<LayoutError>(slot.is_contiguous(), "register_parameter: '", name, "' of ", described(),
                     " must be contiguous, got shape ", slot.shape(), " with strides ",
                     slot.strides(), "; clone() makes a copy that is");
  slot.set_requires_grad(true);
  slot.storage().retag(MemoryTag::kParameters);
  std::erase_if(parameters_, [&](const auto& own) { return own.slot.name == name; });
  parameters_.push_back({.slot = {.name = std::move(name),
                                  .tensor = &slot,
                                  .layout = std::move(layout),
                                  .kept = std::make_shared<Tensor>(),
                                  .initial = initial,
                                  .made_on_meta = slot.is_meta()},
                         .alive = slot.watch_handle()});
  name_storages_of(std::vector{parameters_.back().slot});
}

void Module::register_buffer(std::string name, Tensor& slot, bool persistent,
                             InitialValues initial) {
  check_name("register_buffer", name);
  check<UndefinedTensorError>(slot.defined(), "register_buffer: '", name, "' of ", described(),
                              " must be a defined tensor; make it before registering it");
  check<ValueError>(!slot.requires_grad(), "register_buffer: '", name, "' of ", described(),
                    " must not require a gradient, because a buffer is not trained; detach() it, "
                    "or register a parameter");
  check<ValueError>(!initial.is_declared() || is_floating(slot.dtype()), "register_buffer: '", name,
                    "' of ", described(),
                    " must be float32 or float64 to have initial values, got ", slot.dtype());
  slot.storage().retag(MemoryTag::kParameters);
  std::erase_if(buffers_, [&](const auto& own) { return own.slot.name == name; });
  buffers_.push_back({.slot = {.name = std::move(name),
                               .tensor = &slot,
                               .persistent = persistent,
                               .initial = initial,
                               .made_on_meta = slot.is_meta()},
                      .alive = slot.watch_handle()});
  name_storages_of(std::vector{buffers_.back().slot});
}

void Module::register_module(std::string name, Module& child) {
  check_name("register_module", name);
  check_new_in_tree(name, child);
  std::erase_if(children_, [&](const auto& own) { return own.name == name; });
  children_.push_back(adopt(name, child));
  std::vector<ParameterSlot> parameters;
  child.collect_slots(name, parameters);
  name_storages_of(parameters);
  std::vector<BufferSlot> buffers;
  child.collect_buffers(name, buffers);
  name_storages_of(buffers);
}

void Module::replace_module(std::string_view name, Module& child) {
  const auto place = std::ranges::find(children_, name, &Child::name);
  check<ValueError>(place != children_.end(), "replace_module: ", described(), " has no child '",
                    name, "'");
  auto* const before = place->alive.expired() ? nullptr : place->module;
  if (before == &child) return;
  check_new_in_tree(place->name, child, before);
  if (before != nullptr) check_not_sharded(*before, name);
  if (before != nullptr) {
    std::erase_if(before->parents_, [&](const Parent& parent) { return parent.module == this; });
  }
  Child adopted = adopt(place->name, child);
  place->module = adopted.module;
  place->alive = adopted.alive;
  root().name_storages();
}

// Its group would go on writing to the slots of a module that may be gone.
void Module::check_not_sharded(const Module& child, std::string_view name) const {
  for (const auto& slot : child.parameter_slots()) {
    const auto& spec = slot.parameter().shard_spec();
    check(spec == nullptr || !spec->gathered_for_use, "replace_module: '", name, "' of ",
          described(), " must not be sharded yet, got a shard of its '", slot.name,
          "'; replace modules before fully_shard");
  }
}

std::pair<Module*, Module::Child*> Module::child_at(std::string_view what, std::string_view path) {
  auto* parent = this;
  auto rest = path;
  while (true) {
    const auto found = std::ranges::find_if(parent->children_, [&](const Child& child) {
      return rest == child.name || rest.starts_with(child.name + '.');
    });
    check<ValueError>(found != parent->children_.end(), what, ": ", described(),
                      " must have a module '", path, "', got none");
    if (rest == found->name) return {parent, &*found};
    rest.remove_prefix(found->name.size() + 1);
    parent = &parent->checked(*found);
  }
}

Module::Child Module::adopt(std::string name, Module& child) {
  std::erase_if(child.parents_, [](const Parent& parent) { return parent.alive.expired(); });
  child.parents_.push_back({.module = this, .alive = life_.watch(), .name = name});
  return {.name = std::move(name), .module = &child, .alive = child.life_.watch()};
}

void Module::check_name(std::string_view what, const std::string& name) const {
  const bool has_empty_part = name.empty() || name.front() == '.' || name.back() == '.' ||
                              name.find("..") != std::string::npos;
  check<ValueError>(!has_empty_part, what, ": a name in ", described(),
                    " must have no empty part, got '", name, "'");
  const auto refuse_clash = [&](const auto& own, const std::string& taken, std::string_view kind) {
    if (own.alive.expired()) return;  // its name is free
    const bool same = name == taken;
    check<ValueError>(!same, what, ": '", name, "' is the name of a ", kind, " of ", described(),
                      " already; each child, parameter and buffer needs a name of its own");
    const bool within = is_below(name, taken) || is_below(taken, name);
    check<ValueError>(!within, what, ": '", name, "' and the ", kind, " '", taken, "' of ",
                      described(), " must not lie within each other: full names could coincide");
  };
  for (const auto& own : parameters_) refuse_clash(own, own.slot.name, "parameter");
  for (const auto& own : buffers_) refuse_clash(own, own.slot.name, "buffer");
  for (const auto& child : children_) refuse_clash(child, child.name, "child");
}

void Module::check_new_in_tree(const std::string& name, Module& child,
                               const Module* leaving) const {
  check<ValueError>(!is_within(child), "register_module: '", name, "' of ", described(),
                    " must not be or contain the module that registers it");
  std::vector<std::pair<std::string, Module*>> modules;
  child.collect_modules(name, modules);
  const auto& tree = root();
  for (const auto& [path, module] : modules) {
    if (leaving != nullptr && module->is_within(*leaving)) continue;
    const auto earlier = module->path_within(tree);
    check<ValueError>(earlier == nullptr, "register_module: '", path, "' of ", described(),
                      " is registered as '", earlier == nullptr ? std::string() : *earlier,
                      "' already; register a module once and call it as often as you like, or make "
                      "another one of the same weight, as nn::Linear(weight) and "
                      "nn::Embedding(weight) do");
  }
}

std::string Module::described() const {
  const auto* const parent = last_parent();
  return parent == nullptr ? "the module" : "module '" + parent->name + "'";
}

const Module& Module::root() const {
  const auto* module = this;
  while (const auto* const parent = module->last_parent()) module = parent->module;
  return *module;
}

std::shared_ptr<const std::string> Module::path_within(const Module& root) const {
  static const auto kPathOfRoot = std::make_shared<const std::string>();
  if (this == &root) return kPathOfRoot;
  for (auto parent = parents_.rbegin(); parent != parents_.rend(); ++parent) {
    if (parent->alive.expired()) continue;
    auto above = parent->module->path_within(root);
    if (above == nullptr) continue;
    const std::lock_guard lock(path_mutex_);
    if (parent->parents_path != above) {
      parent->path = std::make_shared<const std::string>(join(*above, parent->name));
      parent->parents_path = std::move(above);
    }
    return parent->path;
  }
  return nullptr;
}

const Module::Parent* Module::last_parent() const {
  const auto lives = [](const Parent& parent) { return !parent.alive.expired(); };
  const auto found = std::ranges::find_if(parents_.rbegin(), parents_.rend(), lives);
  return found == parents_.rend() ? nullptr : &*found;
}

// Climbs, since a tree is wide but not deep.
bool Module::is_within(const Module& other) const {
  return this == &other || std::ranges::any_of(parents_, [&](const Parent& parent) {
           return !parent.alive.expired() && parent.module->is_within(other);
         });
}

Module& Module::checked(const Child& child) const {
  check(!child.alive.expired(), described(), ": child '", child.name,
        "' no longer exists: it must live as long as the module that registered it");
  return *child.module;
}

void Module::name_storages() const {
  for (const auto& [name, parameter] : named_parameters()) parameter.storage().set_name(name);
  for (const auto& [name, buffer] : named_buffers()) buffer.storage().set_name(name);
}

void Module::check_alive(const std::weak_ptr<const void>& alive, std::string_view kind,
                         const std::string& name) const {
  check(!alive.expired(), described(), ": ", kind, " '", name,
        "' is no longer where it was registered: its tensor must stay there as long as the module "
        "lives, and a vector that grows moves its elements");
}

void Module::collect_slots(const std::string& prefix, std::vector<ParameterSlot>& slots) const {
  for (const auto& own : parameters_) {
    check_alive(own.alive, "parameter", own.slot.name);
    slots.push_back(own.slot);
    slots.back().name = join(prefix, own.slot.name);
  }
  for (const auto& child : children_) {
    checked(child).collect_slots(join(prefix, child.name), slots);
  }
}

void Module::collect_buffers(const std::string& prefix, std::vector<BufferSlot>& slots) const {
  for (const auto& own : buffers_) {
    check_alive(own.alive, "buffer", own.slot.name);
    slots.push_back(own.slot);
    slots.back().name = join(prefix, own.slot.name);
  }
  for (const auto& child : children_) {
    checked(child).collect_buffers(join(prefix, child.name), slots);
  }
}

std::vector<ParameterSlot> Module::parameter_slots() const {
  std::vector<ParameterSlot> slots;
  collect_slots("", slots);
  return slots;
}

std::vector<ParameterSlot> Module::distinct_parameters() const {
  std::vector<ParameterSlot> distinct;
  std::unordered_set<const TensorImpl*> seen;
  for (auto& slot : parameter_slots()) {
    const bool is_first = seen.insert(slot.parameter().impl().get()).second;
    if (is_first) distinct.push_back(std::move(slot));
  }
  return distinct;
}

NamedTensors Module::named_parameters() const {
  NamedTensors parameters;
  for (const auto& slot : distinct_parameters()) {
    parameters.push_back({slot.name, slot.parameter()});
  }
  return parameters;
}

std::vector<BufferSlot> Module::buffer_slots() const {
  std::vector<BufferSlot> all, distinct;
  collect_buffers("", all);
  std::unordered_set<const TensorImpl*> seen = {nullptr};  // an undefined one is left out
  for (auto& slot : all) {
    const bool is_first = seen.insert(slot.tensor->impl().get()).second;
    if (is_first) distinct.push_back(std::move(slot));
  }
  return distinct;
}

NamedTensors Module::named_buffers() const {
  NamedTensors buffers;
  for (const auto& slot : buffer_slots()) buffers.push_back({slot.name, *slot.tensor});
  return buffers;
}

void Module::collect_modules(const std::string& prefix,
                             std::vector<std::pair<std::string, Module*>>& modules) {
  modules.emplace_back(prefix, this);
  for (const auto& child : children_) {
    checked(child).collect_modules(join(prefix, child.name), modules);
  }
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> modules;
  collect_modules("", modules);
  return modules;
}

std::vector<std::pair<std::string, const Module*>> Module::named_modules() const {
  const auto modules = const_cast<Module*>(this)->named_modules();
  return {modules.begin(), modules.end()};
}

ModuleExtensions Module::all_extensions() const {
  ModuleExtensions found = extensions_;
  for (const auto& child : children_) {
    const auto below = checked(child).all_extensions();
    found.insert(found.end(), below.begin(), below.end());
  }
  return found;
}

void Module::warn_once(WarningOf what, std::string_view text) const {
  const auto bit = static_cast<unsigned>(what);
  const auto before = root().warned_of_.fetch_or(bit);
  if ((before & bit) == 0) log(LogLevel::kWarning, text);
}

void Module::train(bool mode) {
  for (const auto& [name, module] : named_modules()) module->training_ = mode;
}

void Module::compute_in(std::optional<Dtype> dtype) {
  check<DtypeError>(!dtype || *dtype == Dtype::kBFloat16,
                    "compute_in: dtype must be bfloat16 or none, got ",
                    dtype.value_or(Dtype::kBFloat16));
  for (const auto& slot : parameter_slots()) {
    check<DtypeError>(!dtype || slot.parameter().dtype() != Dtype::kFloat64,
                      "compute_in: bfloat16 needs float32 parameters, got float64 of '", slot.name,
                      "'");
  }
  for (const auto& [name, module] : named_modules()) module->compute_dtype_ = dtype;
}

void Module::attach(std::shared_ptr<ModuleExtension> extension) {
  check<ValueError>(extension != nullptr, "attach: ", described(),
                    " must be given an extension, got null");
  check<ValueError>(is_callable(), "attach: ", described(),
                    " must be called for an extension to do something, but a list is not; attach "
                    "it to each element");
  extensions_.push_back(std::move(extension));
}

HookHandle Module::register_forward_pre_hook(std::function<void(Module&)> hook) {
  return forward_pre_hooks_.add(std::move(hook));
}
HookHandle Module::register_forward_hook(std::function<void(Module&)> hook) {
  return forward_hooks_.add(std::move(hook));
}
HookHandle Module::register_forward_pre_hook(std::function<void(Module&, const TensorList&)> hook) {
  return input_hooks_.add(std::move(hook));
}
HookHandle Module::register_forward_hook(
    std::function<void(Module&, const TensorList&, const TensorList&)> hook) {
  return output_hooks_.add(std::move(hook));
}
HookHandle Module::register_backward_pre_hook(std::function<void(Module&)> hook) {
  return backward_pre_hooks_.add(std::move(hook));
}
HookHandle Module::register_backward_hook(std::function<void(Module&)> hook) {
  return backward_hooks_.add(std::move(hook));
}

std::pair<ModuleTree, std::shared_ptr<const std::string>> Module::tree_of_call() const {
  const auto& caller = ScopeGuard::current();
  if (caller && !caller->tree.alive.expired()) {
    // Another tree may have registered this module after the caller's.
    auto path = path_within(*static_cast<const Module*>(caller->tree.root));
    if (path != nullptr) return {caller->tree, std::move(path)};
  }
  const auto& top = root();
  ModuleTree tree = {.root = &top, .alive = top.life_.watch()};
  if (caller) tree.path = caller->path();
  return {std::move(tree), path_within(top)};
}

bool Module::has_trainable_parameter() const {
  const auto is_trained = [](const OwnParameter& own) {
    if (own.alive.expired() || !own.slot.parameter().defined()) return false;
    return own.slot.parameter().requires_grad();
  };
  return std::ranges::any_of(parameters_, is_trained) ||
         std::ranges::any_of(children_, [](const Child& child) {
           return !child.alive.expired() && child.module->has_trainable_parameter();
         });
}

// Ranks that train one module would clear each other's gradients and step under each other's
// forward. To read weights together, as in evaluation, is their right.
void Module::check_own_rank() {
  const auto* const context = RankContext::find();
  if (context == nullptr || !context->launch() || !training_ || !grad_enabled()) return;
  const std::lock_guard lock(trainer_mutex_);
  const bool is_first = training_launch_.lock() != context->launch();
  if (!is_first && training_rank_ == context->rank()) return;
  if (!has_trainable_parameter()) return;
  check(is_first, "forward: ", described(), " is trained by rank ", training_rank_,
        " already, so rank ", context->rank(),
        " must have a module of its own; make it in the function that launch() runs, or, to "
        "evaluate one together, call eval() before or use a NoGradGuard");
  training_launch_ = context->launch();
  training_rank_ = context->rank();
}

ScopeGuard Module::open_scope() {
  if (ScopeGuard::current() == nullptr) check_own_rank();
  auto [tree, within] = tree_of_call();
  auto path = tree.path.empty() ? std::move(within)
                                : std::make_shared<const std::string>(join(tree.path, *within));
  if (log_enabled(LogLevel::kDebug)) {
    log(LogLevel::kDebug, "forward " + (path->empty() ? std::string("(root)") : *path));
  }
  std::function<void()> on_enter, on_exit;
  const auto run_if_alive = [&](const Hooks& hooks) {
    return [this, &hooks, path, alive = life_.watch()] {
      check_exists_in_backward(alive, *path, "has hooks that backward runs, as fully_shard's are");
      run(hooks);
    };
  };
  if (!backward_pre_hooks_.empty()) on_enter = run_if_alive(backward_pre_hooks_);
  if (!backward_hooks_.empty()) on_exit = run_if_alive(backward_hooks_);
  return ScopeGuard(std::move(path), std::move(on_enter), std::move(on_exit), std::move(tree));
}

std::function<void()> Module::existence_check() {
  return [alive = life_.watch(), scope = ScopeGuard::current()] {
    check_exists_in_backward(alive, scope->path(), "backward runs it again");
  };
}

void Module::run(const Hooks& hooks) {
  if (hooks.empty()) return;
  for (const auto& hook : hooks.snapshot()) hook(*this);
}

}  // namespace moegrad::nn
