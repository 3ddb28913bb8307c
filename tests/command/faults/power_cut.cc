#include "tests/command/faults/power_cut.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "tests/command/support.h"

namespace perigee::test {

namespace fs = std::filesystem;

namespace {

using FileId = int;
constexpr FileId kTop = 0;

// A change with files in the place of paths.
struct Resolved {
  ChangeKind kind;
  FileId file = -1;               // -1: not known, made without a recorded change
  FileId folder = -1, to = -1;    // that has the name, and that gets it
  std::string name, target_name;  // in these
};

// Names and bytes of files.
struct Disk {
  std::map<FileId, std::map<std::string, FileId>> folders{{kTop, {}}};
  std::map<FileId, std::string> bytes;

  FileId find(const std::string& path) const {
    FileId file = kTop;
    for (const auto& part : fs::path(path)) {
      if (part == ".") continue;
      const auto folder = folders.find(file);
      if (folder == folders.end()) return -1;
      const auto entry = folder->second.find(part.string());
      if (entry == folder->second.end()) return -1;
      file = entry->second;
    }
    return file;
  }

  void list(FileId folder, const std::string& prefix, Files& files) const {
    for (const auto& [name, file] : folders.at(folder)) {
      if (folders.contains(file)) {
        files[prefix + name + "/"];
        list(file, prefix + name + "/", files);
      } else {
        const auto held = bytes.find(file);
        files[prefix + name] = held == bytes.end() ? "" : held->second;
      }
    }
  }

  void apply(const Resolved& to, const Change& change, Left left) {
    if (left == Left::nothing || to.kind == ChangeKind::sync || to.file < 0) return;
    switch (to.kind) {
      case ChangeKind::create:
        bytes.try_emplace(to.file);
        folders[to.folder][to.name] = to.file;
        break;
      case ChangeKind::make_folder:
        folders.try_emplace(to.file);
        folders[to.folder][to.name] = to.file;
        break;
      case ChangeKind::write: {
        auto& held = bytes[to.file];
        const auto size = left == Left::half ? change.data.size() / 2 : change.data.size();
        const auto begin = static_cast<size_t>(change.offset);
        if (held.size() < begin + size) held.resize(begin + size);
        held.replace(begin, size, change.data, 0, size);
        break;
      }
      case ChangeKind::truncate:
        bytes[to.file].resize(static_cast<size_t>(change.offset));
        break;
      case ChangeKind::rename:
        folders[to.to][to.target_name] = to.file;
        [[fallthrough]];
      case ChangeKind::remove: {
        auto& names = folders[to.folder];
        const auto entry = names.find(to.name);
        if (entry != names.end() && entry->second == to.file) names.erase(entry);
        break;
      }
      case ChangeKind::sync:
        break;
    }
  }
};

std::pair<std::string, std::string> split(const std::string& path) {
  const fs::path whole(path);
  return {whole.parent_path().string(), whole.filename().string()};
}

// Returns the changes with the files that they are about: those that have the paths at that time.
std::vector<Resolved> resolve(const std::vector<Change>& changes) {
  Disk disk;
  FileId next = kTop;
  std::vector<Resolved> result;
  for (const auto& change : changes) {
    Resolved to{.kind = change.kind};
    const auto [folder, name] = split(change.path);
    to.folder = disk.find(folder);
    to.name = name;
    to.file = disk.find(change.path);
    const bool makes = change.kind == ChangeKind::create || change.kind == ChangeKind::make_folder;
    if (makes && to.file < 0) to.file = ++next;
    if (change.kind == ChangeKind::rename) {
      const auto [target, target_name] = split(change.target);
      to.to = disk.find(target);
      to.target_name = target_name;
    }
    if (to.folder < 0) throw std::runtime_error("no folder of " + change.path);
    disk.apply(to, change, Left::all);
    result.push_back(to);
  }
  return result;
}

// Returns whether a sync that follows the change makes it last.
bool is_synced(const std::vector<Resolved>& resolved, size_t change, size_t count) {
  const auto& of = resolved[change];
  const bool of_bytes = of.kind == ChangeKind::write || of.kind == ChangeKind::truncate;
  bool source = false, target = of.kind != ChangeKind::rename;
  for (size_t k = change + 1; k < count; ++k) {
    if (resolved[k].kind != ChangeKind::sync) continue;
    if (of_bytes && resolved[k].file == of.file) return true;
    source |= !of_bytes && resolved[k].file == of.folder;
    target |= !of_bytes && resolved[k].file == of.to;
    if (source && target) return true;
  }
  return false;
}

}  // namespace

std::vector<Change> read_changes(const std::string& log, const std::string& folder) {
  const auto text = read(log);
  std::vector<Change> changes;
  const auto relative = [&](const std::string& path) {
    return path.size() > folder.size() ? path.substr(folder.size() + 1) : std::string(".");
  };
  for (size_t at = 0; at < text.size();) {
    ChangeHead head;
    std::memcpy(&head, text.data() + at, sizeof head);
    at += sizeof head;
    const auto take = [&](size_t size) {
      at += size;
      return text.substr(at - size, size);
    };
    Change change{.kind = head.kind};
    change.path = relative(take(head.path_size));
    change.target = head.target_size > 0 ? relative(take(head.target_size)) : "";
    change.offset = head.offset;
    change.data = take(head.data_size);
    changes.push_back(std::move(change));
  }
  return changes;
}

Files files_after_cut(const std::vector<Change>& changes, size_t count,
                      const std::function<Left(size_t)>& left) {
  const auto resolved = resolve(changes);
  Disk disk;
  for (size_t k = 0; k < count; ++k) {
    disk.apply(resolved[k], changes[k], is_synced(resolved, k, count) ? Left::all : left(k));
  }
  Files files;
  disk.list(kTop, "", files);
  return files;
}

void write_files(const Files& files, const std::string& folder) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const auto& [path, bytes] : files) {
    if (path.ends_with('/')) {
      fs::create_directories(folder + "/" + path);
    } else {
      fs::create_directories((fs::path(folder) / path).parent_path());
      std::ofstream(folder + "/" + path, std::ios::binary) << bytes;
    }
  }
}

}  // namespace perigee::test
