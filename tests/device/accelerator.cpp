// A pretend accelerator with two devices, for machines that have none.
//
// Its tensors lie in main memory and its operations run on the processor, but PyTorch treats them as
// those of an accelerator, and what goes wrong on one goes wrong here:
//   - operations refuse tensors of different devices,
//   - a copy from or to pinned memory that need not block is made late: when the device is next used,
//   - memory is counted, and an allocation beyond a limit raises torch.OutOfMemoryError.

#include <torch/extension.h>

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <vector>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using Stats = c10::CachingDeviceAllocator::DeviceStats;

constexpr auto TYPE = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex DEVICES = 2;
constexpr size_t ALIGNMENT = 64;

thread_local DeviceIndex current = 0;

Device device_at(DeviceIndex index) {
  TORCH_CHECK(index < DEVICES, "invalid device ordinal: there are ", int(DEVICES), " devices");
  return Device(TYPE, index < 0 ? current : index);
}

// Memory

struct Bank {
  Stats stats;
  size_t limit = std::numeric_limits<size_t>::max();
  int64_t refused = 0;
};

struct Block {
  size_t bytes;
  DeviceIndex device;
};

std::mutex memory_lock;
std::array<Bank, DEVICES> banks;
std::map<const void*, Block> blocks;  // of the devices
std::map<const char*, size_t> pinned;  // of the host

void* host_memory(size_t bytes) {
  void* found = std::aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
  TORCH_CHECK(found != nullptr, "not enough memory for ", bytes, " bytes");
  return found;
}

void release(void* pointer) {
  std::lock_guard<std::mutex> guard(memory_lock);
  auto found = blocks.find(pointer);
  if (found == blocks.end()) return;
  auto& stats = banks[found->second.device].stats;
  stats.allocated_bytes[0].decrease(found->second.bytes);
  stats.allocation[0].decrease(1);
  blocks.erase(found);
  std::free(pointer);
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const Device device = device_at(current);
    if (bytes == 0) return {nullptr, nullptr, &release, device};
    std::lock_guard<std::mutex> guard(memory_lock);
    Bank& bank = banks[device.index()];
    const size_t held = bank.stats.allocated_bytes[0].current;
    if (held + bytes > bank.limit) {
      ++bank.refused;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "pretend accelerator out of memory: tried to allocate ",
                       bytes, " bytes, ", held, " of ", bank.limit, " are in use");
    }
    void* pointer = host_memory(bytes);
    std::memset(pointer, 0xAB, bytes);  // so that what was never written is seen
    blocks[pointer] = {bytes, device.index()};
    bank.stats.allocated_bytes[0].increase(bytes);
    bank.stats.allocation[0].increase(1);
    return {pointer, pointer, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  Stats getDeviceStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> guard(memory_lock);
    return banks[device_at(device).index()].stats;
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> guard(memory_lock);
    banks[device_at(device).index()].stats.allocated_bytes[0].reset_accumulated();
  }
  void resetPeakStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> guard(memory_lock);
    banks[device_at(device).index()].stats.allocated_bytes[0].reset_peak();
  }
};
Allocator allocator;

void unpin(void* pointer) {
  std::lock_guard<std::mutex> guard(memory_lock);
  pinned.erase(static_cast<const char*>(pointer));
  std::free(pointer);
}

struct PinnedAllocator final : at::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &unpin, at::kCPU};
    void* pointer = host_memory(bytes);
    std::lock_guard<std::mutex> guard(memory_lock);
    pinned[static_cast<const char*>(pointer)] = bytes;
    return {pointer, pointer, &unpin, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};
PinnedAllocator pinned_allocator;

bool is_pinned(const void* pointer) {
  std::lock_guard<std::mutex> guard(memory_lock);
  const auto* address = static_cast<const char*>(pointer);
  auto after = pinned.upper_bound(address);
  if (after == pinned.begin()) return false;
  --after;
  return address < after->first + after->second;
}

// Copies that need not block wait here. As all work of a device is in the order of its stream, they are
// made before anything else there.
std::recursive_mutex stream_lock;
std::vector<std::function<void()>> waiting;
int64_t late_copies = 0;

void finish() {
  std::lock_guard<std::recursive_mutex> guard(stream_lock);
  auto copies = std::move(waiting);
  waiting.clear();
  for (auto& copy : copies) copy();
}

// Devices

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return TYPE; }
  Device exchangeDevice(Device device) const override {
    Device before(TYPE, current);
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return Device(TYPE, current); }
  void setDevice(Device device) const override { current = device_at(device.index()).index(); }
  void uncheckedSetDevice(Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, Device(TYPE, device.has_index() ? device.index() : current));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  void record(void**, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  void synchronizeStream(const c10::Stream&) const override { finish(); }
  void synchronizeDevice(const DeviceIndex) const override { finish(); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return DEVICES; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex device) const override { current = device_at(device).index(); }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return std::exchange(current, device_at(device).index());
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return device < 0 ? current : exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    static at::Generator generator = at::detail::getDefaultCPUGenerator();
    return generator;
  }
  Device getDeviceFromPtr(void* pointer) const override {
    std::lock_guard<std::mutex> guard(memory_lock);
    auto found = blocks.find(pointer);
    return Device(TYPE, found == blocks.end() ? current : found->second.device);
  }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    finish();
    c10::DeviceGuard guard(storage.device());
    auto larger = allocator.allocate(bytes);
    const size_t kept = std::min(bytes, storage.nbytes());
    if (kept) std::memcpy(larger.get(), storage.data(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(larger));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};
Hooks hooks;

// Tensors

bool is_ours(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == TYPE; }

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device_at(device ? device->index() : -1));
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device_at(device ? device->index() : -1));
  return at::detail::empty_strided_generic(size, stride, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

// The memory of a tensor, seen by the processor.
Tensor on_host(const Tensor& tensor) {
  if (!is_ours(tensor)) return tensor;
  auto storage = tensor.storage();
  return at::for_blob(tensor.data_ptr(), tensor.sizes())
      .strides(tensor.strides())
      .deleter([storage](void*) {})
      .options(at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU))
      .make_tensor();
}

Tensor to_device(const Tensor& tensor, Device device) {
  if (!tensor.defined()) return tensor;
  Tensor result = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(device));
  on_host(result).copy_(tensor);
  return result;
}

Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  const Tensor& other = is_ours(self) ? to : self;
  if (non_blocking && !is_ours(other) && other.is_pinned()) {
    std::lock_guard<std::recursive_mutex> guard(stream_lock);
    ++late_copies;
    waiting.push_back([self, to] { on_host(to).copy_(on_host(self)); });
    return to;
  }
  finish();
  on_host(to).copy_(on_host(self));
  return to;
}

const Tensor& resize_storage(const Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const size_t bytes = (c10::multiply_integers(size) + self.storage_offset()) * self.element_size();
  if (self.storage().nbytes() < bytes) hooks.resizePrivateUse1Bytes(self.storage(), bytes);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  if (to.sizes() != self.sizes()) resize_storage(to, self.sizes(), std::nullopt);
  return copy_from(self, to, false);
}

at::Scalar local_scalar(const Tensor& self) {
  finish();
  return at::_local_scalar_dense(on_host(self));
}

Tensor& set_storage(Tensor& self, at::Storage storage, int64_t offset, c10::IntArrayRef size,
                    c10::IntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  if (stride.empty() && size.size() == 1) self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  else self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
  return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage storage) {
  const int64_t count = storage.nbytes() / self.element_size();
  return set_storage(self, std::move(storage), 0, {count}, {});
}

// Operations

[[noreturn]] void refuse(const Tensor& tensor, Device device, const std::string& name) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but ", name, " found one on ", device,
              " and one on ", tensor.device(), " of shape ", tensor.sizes());
}

Tensor convolution(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef extra,
                   int64_t groups) {
  finish();
  if (weight.device() != x.device()) refuse(weight, x.device(), "convolution");
  std::optional<Tensor> offset;
  if (bias && bias->defined()) {
    if (bias->device() != x.device()) refuse(*bias, x.device(), "convolution");
    offset = on_host(*bias);
  }
  auto result = at::convolution(on_host(x), on_host(weight), offset, stride, padding, dilation, transposed, extra, groups);
  return to_device(result, x.device());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& gradient, const Tensor& x, const Tensor& weight, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef extra, int64_t groups, std::array<bool, 3> wanted) {
  finish();
  if (weight.device() != x.device()) refuse(weight, x.device(), "convolution_backward");
  if (gradient.device() != x.device()) refuse(gradient, x.device(), "convolution_backward");
  const std::vector<int64_t> bias_size = {transposed ? weight.size(1) * groups : weight.size(0)};
  auto [of_x, of_weight, of_bias] =
      at::convolution_backward(on_host(gradient), on_host(x), on_host(weight), at::OptionalIntArrayRef(bias_size),
                               stride, padding, dilation, transposed, extra, groups, wanted);
  return {to_device(of_x, x.device()), to_device(of_weight, x.device()), to_device(of_bias, x.device())};
}

// Indices may be on the host, as on CUDA; so may single numbers.
bool may_mix(const std::string& name) {
  return name == "aten::_copy_from" || name == "aten::copy_" || name == "aten::index" ||
         name == "aten::index_put" || name == "aten::index_put_" || name == "aten::_index_put_impl_";
}

void by_processor(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  finish();
  const std::string& name = op.schema().name();
  if (!may_mix(name)) {
    std::optional<Device> device;
    std::vector<Tensor> tensors;
    for (const auto& argument : torch::jit::last(stack, op.schema().arguments().size())) {
      if (argument.isTensor()) tensors.push_back(argument.toTensor());
      if (argument.isTensorList())
        for (const Tensor& tensor : argument.toTensorList()) tensors.push_back(tensor);
      if (argument.isOptionalTensorList())
        for (const std::optional<Tensor>& tensor : argument.toOptionalTensorVector())
          if (tensor) tensors.push_back(*tensor);
    }
    for (const Tensor& tensor : tensors)
      if (is_ours(tensor) && tensor.dim() > 0 && !device) device = tensor.device();
    for (const Tensor& tensor : tensors)
      if (device && tensor.defined() && tensor.device() != *device &&
          (tensor.dim() > 0 || is_ours(tensor)))
        refuse(tensor, *device, name);
  }
  at::native::cpu_fallback(op, stack);
}

Tensor as_strided(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

Tensor reshape_alias(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::native::as_strided_tensorimpl(self, size, stride, self.storage_offset());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("resize_", resize_storage);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("set_.source_Storage", set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("view", at::native::view);
  m.impl("as_strided", as_strided);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&by_processor>()); }

// What autocast makes shorter; all else is computed as it comes.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(TYPE, &allocator);
  m.def("device_count", [] { return int(DEVICES); });
  m.def("current_device", [] { return int(current); });
  m.def("set_device", [](int device) { hooks.setCurrentDevice(DeviceIndex(device)); });
  m.def("synchronize", [] { finish(); });
  m.def("late_copies", [] { return late_copies; });
  m.def("refused", [](int device) { return banks.at(device).refused; });
  m.def("set_limit", [](int device, std::optional<size_t> bytes) {
    std::lock_guard<std::mutex> guard(memory_lock);
    banks.at(device).limit = bytes.value_or(std::numeric_limits<size_t>::max());
  });
}
