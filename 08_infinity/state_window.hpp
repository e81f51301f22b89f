// SPDX-License-Identifier: MIT
// The optimizer state lies on the disk: of it the host has a few pieces in memory at a time. While
// its cores update one, the next ones are read and the one before is written.
//
// Streams: the host's cores, reads and writes. Every order between them is a wait written here.
#pragma once
#include "common.hpp"

namespace zero {
/// Some elements of a rank's part of one layer, small enough to be in memory at a time.
struct Piece {
  std::int64_t number;
  int layer;
  std::int64_t offset, size;  // in elements of the layer's part
  View of(Sharded& held) const { return held.shard(layer).part(offset, size); }
};

class StateWindow {
 public:
  /// The state is on the disk; of fp32 parameters, their own master, two tensors of it. cores: on
  /// which Adam runs. All that is referred to must outlive the window.
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
    if (momentum.view().place() == Place::host) return;  // --state host: all of it is in memory
    const std::int64_t most = std::min(options.piece, layout.largest_layer() / layout.ranks());
    slots_.resize(card.borrowed.pieces);
    for (Slot& slot : slots_) {
      slot.id = cores.device().new_slot();
      for (std::size_t i = 0; i < tensors_.size(); ++i) {
        slot.memory.emplace_back(cores.device(), Kind::optimizer, Dtype::fp32, most);
      }
    }
  }

  /// Waits until all that was put back is on the disk, and what was read ahead is in memory.
  void synchronise() { reads_.synchronise(), writes_.synchronise(); }

  /// All of this rank's state, in the order in which take() wants them.
  const std::vector<Piece>& pieces() const { return pieces_; }

  /// Writes the master weights, as the model begins with them; compute: its stream. Not counted.
  void initialise(const Model& model, Stream& compute, CallSite = {}) {
    if (tensors_.size() < 3) return;
    for (const Piece& piece : pieces_) {
      const View weights = in_memory(piece, 2), there = piece.of(*tensors_[2]);
      model.initialise(weights);
      compute.synchronise();
      if (!slots_.empty()) there.device->copy(there.data, weights.data, weights.bytes());
    }
  }

  /// Reads the first pieces, as many as there is room for. A step that is skipped leaves them in
  /// place for the next one, so each byte is read once per update.
  void read_ahead(CallSite = {}) { read_until(std::ssize(slots_)); }

  /// What Adam updates of that piece, with `params`, in the host's memory until put_back().
  AdamState take(const Piece& piece, View params, CallSite = {}) {
    read_until(piece.number + std::ssize(slots_));
    if (!slots_.empty()) cores_.wait(slot_of(piece).filled);
    const View weights = tensors_.size() > 2 ? in_memory(piece, 2) : params;
    return {weights, in_memory(piece, 0), in_memory(piece, 1), params};
  }

  /// Adam of the piece has been put on the cores' stream. Returns the point at which it is done.
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
    std::vector<Tensor> memory{};  // of each tensor on the disk a piece
    Event filled{}, free{};  // its piece has been read; has been written
  };
  Slot& slot_of(const Piece& piece) { return slots_[piece.number % slots_.size()]; }
  View in_memory(const Piece& piece, std::size_t i) {
    View part = piece.of(*tensors_[i]);
    if (slots_.empty()) return part;
    const View room = slot_of(piece).memory[i].view();
    part.data = room.data, part.device = room.device, part.slot = slot_of(piece).id;
    return part;
  }

  void read_until(std::int64_t end) {
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
  std::vector<Sharded*> tensors_;
  std::vector<Piece> pieces_;
  std::vector<Slot> slots_;
  std::ptrdiff_t next_ = 0;  // piece to read
  Stream reads_, writes_;
};
}  // namespace zero
