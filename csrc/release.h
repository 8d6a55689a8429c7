// Memory of a vector, given back at once: `vector = {}` empties it and keeps the memory.
#pragma once

#include <cstddef>
#include <vector>

namespace fedmef {

template <class Element>
void release(std::vector<Element>& elements) {
  std::vector<Element>().swap(elements);
}

template <class Element>
size_t bytes_of(const std::vector<Element>& elements) {
  return elements.capacity() * sizeof(Element);
}

}  // namespace fedmef
