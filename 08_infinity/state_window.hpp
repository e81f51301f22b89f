// SPDX-License-Identifier: MIT
// The disk stores the optimizer state; the host has only a few pieces of it in memory. While the
// host's cores update one piece, the next ones are read and the previous one is written. Streams:
// the host's cores, reads and writes. Where one stream must follow another, there is a wait.
#pragma once
#include "common.hpp"

namespace zero {
/// Consecutive elements of this rank's shard of a layer, read and written together.
struct Piece {
  std::int64_t number;  // its position in pieces()
  int layer;
  std::int64_t offset, size;  // in elements of the layer's shard
  View of(Sharded& held) const { return held.shard(layer).part(offset, size); }
};

class StateWindow {
 public:
  /// master is empty for fp32 parameters, which are their own master weights. cores: the stream on
  /// which Adam runs. The window keeps references to cores and to the three tensors.
  StateWindow(const Card& card, const Options& options, const Layout& layout, Stream& cores,
              Optional<Sharded>& master, Sharded& momentum, Sharded& variance)
      : cores_(cores),
        tensors_{&momentum, &variance},
        reads_("reads", *momentum.view().device, Stream::Mode::asynchronous),
        writes_("writes", *momentum.view().device, Stream::Mode::asynchronous) {
    if (master) tensors_.push_back(&*master);
    for (int l = 0; l < layout.layers(); ++l) {
      const std::int64_t all = layout.shard_size(l);
      for (std::int64_t at = 0; at < all; at += options.piece) {
        pieces_.push_back({std::ssize(pieces_), l, at, std::min(options.piece, all - at)});
      }
    }
    if (momentum.view().place() == Place::host) return;  // --state host: all state is in memory
    const std::int64_t largest = std::min(options.piece, layout.largest_layer() / layout.ranks());
    slots_.resize(card.borrowed.pieces);
    for (Slot& slot : slots_) {
      slot.id = cores.device().new_slot();
      for (std::size_t i = 0; i < tensors_.size(); ++i) {
        slot.memory.emplace_back(cores.device(), Kind::optimizer, Dtype::fp32, largest);
      }
    }
  }

  void synchronise() { reads_.synchronise(), writes_.synchronise(); }

  /// Returns the pieces of this rank's state, in the order in which a step must take() them.
  const std::vector<Piece>& pieces() const { return pieces_; }

  /// Writes the initial master weights and blocks until that is done; does nothing in fp32. The bus
  /// does not count these bytes. compute: the stream on which model works.
  void initialise(const Model& model, Stream& compute, CallSite = {}) {
    if (tensors_.size() < 3) return;
    for (const Piece& piece : pieces_) {
      const View weights = in_memory(piece, 2), there = piece.of(*tensors_[2]);
      model.initialise(weights);
      compute.synchronise();
      if (!slots_.empty()) there.device->copy(there.data, weights.data, weights.bytes());
    }
  }

  /// Queues the reads of the first pieces, one per slot. A skipped step leaves them in memory for
  /// the next step, so each byte is read once per update.
  void read_ahead(CallSite = {}) { read_until(std::ssize(slots_)); }

  /// Returns the piece's state for Adam on cores, which waits until the piece is read. params: its
  /// parameters, which Adam writes. The memory is lent until put_back().
  AdamState take(const Piece& piece, View params, CallSite = {}) {
    read_until(piece.number + std::ssize(slots_));
    if (!slots_.empty()) cores_.wait(slot_of(piece).filled);
    const View weights = tensors_.size() > 2 ? in_memory(piece, 2) : params;
    return {weights, in_memory(piece, 0), in_memory(piece, 1), params};
  }

  /// Queues the piece's writes behind Adam's work on it. Returns the event at which Adam has ended.
  Event put_back(const Piece& piece, CallSite = {}) {
    const Event updated = cores_.record();
    if (slots_.empty()) return updated;
    writes_.wait(updated);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      copy(writes_, in_memory(piece, i), piece.of(*tensors_[i]));
    }
    slot_of(piece).free = writes_.record();
    if (piece.number + 1 == std::ssize(pieces_)) next_ = 0;
    return updated;
  }

 private:
  struct Slot {
    int id = 0;
    std::vector<Tensor> memory{};  // room for one piece of each of tensors_
    Event filled{}, free{};  // filled: its piece has been read; free: it has been written
  };
  Slot& slot_of(const Piece& piece) { return slots_[piece.number % slots_.size()]; }
  View in_memory(const Piece& piece, std::size_t i) {  // the piece of tensors_[i]
    View part = piece.of(*tensors_[i]);
    if (slots_.empty()) return part;
    const View room = slot_of(piece).memory[i].view();
    part.data = room.data, part.device = room.device, part.slot = slot_of(piece).id;
    return part;
  }

  void read_until(std::int64_t end) {  // queues reads of the pieces before number `end`
    if (slots_.empty()) return;
    for (; next_ < std::min(end, std::ssize(pieces_)); ++next_) {
      const Piece& piece = pieces_[next_];
      reads_.wait(slot_of(piece).free);
      for (std::size_t i = 0; i < tensors_.size(); ++i) {
        copy(reads_, piece.of(*tensors_[i]), in_memory(piece, i));
      }
      slot_of(piece).filled = reads_.record();
    }
  }

  Stream& cores_;
  std::vector<Sharded*> tensors_;  // momentum, variance, then the master weights if there are any
  std::vector<Piece> pieces_;
  std::vector<Slot> slots_;  // empty with --state host: then nothing is read or written
  std::ptrdiff_t next_ = 0;  // number of the next piece to read
  Stream reads_, writes_;
};
}  // namespace zero
