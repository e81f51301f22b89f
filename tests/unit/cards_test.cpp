// SPDX-License-Identifier: MIT
// notes/cards.json equals the chapters' cards: scripts read from it who stores and sends what.
#include <fstream>
#include <nlohmann/json.hpp>

#include "config.hpp"
#include "tests/unit/checks.hpp"

namespace zero::test {
namespace {
/// How often a step sends or copies something, in cards.json's words: "0", "2", "A", "2A".
std::string times(const Frequency& sent) {
  if (sent.a_micro_batch == 0) return fmt::format("{}", sent.a_step);
  CHECK(sent.a_step == 0);
  return sent.a_micro_batch == 1 ? "A" : fmt::format("{}A", sent.a_micro_batch);
}

nlohmann::json told(const Card& card) {
  const auto& [p, g, k] = card.held;
  const auto& [parameters, and_prefetched, gradients, pieces] = card.borrowed;
  nlohmann::json of{
      {"name", card.name}, {"ranks", card.ranks}, {"mixed_precision", card.mixed_precision}};
  for (const Place place : every<Place>) of["bytes"][name_of(place)] = formula(card, place);
  of["held"] = {{"parameters", name_of(p)}, {"gradients", name_of(g)}, {"optimizer", name_of(k)}};
  for (const Phase phase : step_phases) of["sent"][name_of(phase)] = times(card.sent_in(phase));
  of["borrowed"] = {{"parameters", parameters},
                    {"and_prefetched", and_prefetched},
                    {"gradients", gradients},
                    {"pieces", pieces}};
  of["copied"] = {{"to_host", times(card.copied.to_host)},
                  {"to_device", times(card.copied.to_device)}};
  return of;
}
}  // namespace

TEST_CASE("the scripts read the cards as they are") {
  const auto file = std::filesystem::path(DEFAULT_CORPUS).parent_path() / "cards.json";
  const nlohmann::json read = nlohmann::json::parse(std::ifstream(file));
  CHECK(read.size() == std::size(all_cards));
  for (std::size_t i = 0; i < read.size(); ++i) {
    INFO("the card as JSON: ", told(*all_cards[i]).dump());
    CHECK(read[i] == told(*all_cards[i]));
  }
}

TEST_CASE("bytes of state per parameter, by place") {
  const auto bytes = [](const char* number, Place place) {
    return card(number).bytes(place, 2, 2, 12, 4);
  };
  CHECK(bytes("03", Place::device) == 16);
  CHECK(bytes("05", Place::device) == 5.5);
  CHECK(bytes("07", Place::device) + bytes("08", Place::host) == 2);
  CHECK(bytes("07", Place::host) == 3.5);
  CHECK(bytes("08", Place::disk) == 3);
}
}  // namespace zero::test
