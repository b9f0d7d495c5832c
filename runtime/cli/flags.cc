#include "runtime/cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "absl/strings/numbers.h"
#include "runtime/base/exit_code.h"
#include "runtime/base/status.h"
#include "runtime/config/keys.h"
#include "runtime/supervisor/line_file.h"
#include "runtime/supervisor/redis_address.h"

namespace holdfast {
namespace {

constexpr char kAbout[] =
    "holdfast trains a model data-parallel on workers that may die, and ends in the same bits.\n"
    "Workers that die are replaced, those that stay go on in the same processes; the same command "
    "resumes a run.";

constexpr char kRunExample[] =
    "Precedence: flag, then --config file, then default. Ctrl-C saves and leaves; the same command "
    "again resumes.\n"
    "Example:\n"
    "  holdfast run --dir my-run --data book.txt --workers 2 --steps 2000 --checkpoint-every 5m\n"
    "On a second machine, with a Redis that both reach:\n"
    "  holdfast run --dir my-run --data book.txt --steps 2000 --redis redis://10.0.0.1:6379 --run "
    "book --host 10.0.0.2";

// What the flags said, before types are looked at: the table of keys judges values from flags and
// file alike.
struct RawRun {
  std::string config_file;
  bool dry_run = false, json = false;
  std::string link_gbits, price_per_hour;
  std::map<const Key*, std::vector<std::string>> values;
  std::map<const Key*, bool> flags;
  std::vector<std::string> own_keys;  // of --set: KEY=VALUE
};

const char* TypeName(const Key& key) {
  switch (key.type) {
    case KeyType::kInteger:
      return "INTEGER";
    case KeyType::kNumber:
      return "NUMBER";
    case KeyType::kText:
      return "TEXT";
    case KeyType::kList:
      return "PATH ...";
    case KeyType::kMilliseconds:
      return "TIME";
    case KeyType::kCheckpointEvery:
      return "STEPS|TIME";
    case KeyType::kPart:
      return "TOKENS|N%";
    case KeyType::kFlag:
      return "";
  }
  return "";
}

std::string HelpText(const Key& key) {
  static const Config defaults;
  std::string value = ValueText(key, defaults);
  if (value == "\"\"" || value == "[]" || key.type == KeyType::kFlag) value.clear();
  std::string text(key.help);
  if (!key.choices.empty()) text += Cat(": ", key.choices);
  if (!value.empty()) text += Cat(" [", value, "]");
  if (key.key_class != KeyClass::kFree) text += Cat(" (", ClassText(key.key_class), ")");
  return text;
}

void AddRun(CLI::App* run, RawRun* raw) {
  run->footer(kRunExample);
  run->add_option("--config", raw->config_file,
                  "TOML file with any of the keys below (micro_batches = 8)")
      ->type_name("FILE")
      ->group("Run");
  const char* before = "Before a run";
  run->add_flag(
         "--dry-run", raw->dry_run,
         "start nothing: check all, time a few steps, and print memory, time, disk, speed-up "
         "and determinism")
      ->group(before);
  run->add_flag("--json", raw->json, "with --dry-run: as JSON")->group(before);
  run->add_option("--link-gbits", raw->link_gbits,
                  "with --dry-run: rate of the network between two workers, in Gbit/s [10]")
      ->type_name("NUMBER")
      ->group(before);
  run->add_option("--price-per-hour", raw->price_per_hour,
                  "with --dry-run: what one worker costs an hour, to show what the run costs")
      ->type_name("NUMBER")
      ->group(before);
  for (const Key& key : Keys()) {
    CLI::Option* option;
    if (key.type == KeyType::kFlag) {
      option = run->add_flag(FlagOf(key), raw->flags[&key], HelpText(key));
    } else {
      option =
          run->add_option(FlagOf(key), raw->values[&key], HelpText(key))->type_name(TypeName(key));
      // One value each, given once; lists take several.
      if (key.type != KeyType::kList)
        option->expected(1)->allow_extra_args(false)->multi_option_policy(
            CLI::MultiOptionPolicy::Throw);
    }
    option->group(key.group == "Internal" ? "" : std::string(key.group));
  }
  run->add_option("--set", raw->own_keys,
                  "keys of your own model, as in the file's [model] table (bits)")
      ->type_name("KEY=VALUE ...")
      ->group("Model");
}

absl::Status Usage(std::string_view text) { return absl::InvalidArgumentError(View(text)); }

// Flags of `run` that are no keys: they belong to one command, not to a run.
constexpr std::string_view kRunOnly[] = {"config",     "dry_run",        "json",
                                         "link_gbits", "price_per_hour", "set"};

absl::Status ReadPositive(std::string_view flag, const std::string& text, double* value) {
  if (text.empty()) return absl::OkStatus();
  if (!absl::SimpleAtod(text, value) || !(*value > 0 && *value < 1e9))
    return Usage(Cat(flag, ": '", text, "' is not a number above 0"));
  return absl::OkStatus();
}

absl::Status ResolveDryRun(const RawRun& raw, CommandLine* line) {
  if (!raw.dry_run) {
    const char* alone = raw.json                      ? "--json"
                        : !raw.link_gbits.empty()     ? "--link-gbits"
                        : !raw.price_per_hour.empty() ? "--price-per-hour"
                                                      : nullptr;
    if (alone == nullptr) return absl::OkStatus();
    return Usage(Cat(alone, " belongs to holdfast run --dry-run"));
  }
  line->kind = CommandLine::Kind::kDryRun;
  line->json = raw.json;
  HF_RETURN_IF_ERROR(ReadPositive("--link-gbits", raw.link_gbits, &line->link_gbits));
  return ReadPositive("--price-per-hour", raw.price_per_hour, &line->price_per_hour);
}

absl::Status SetOwnKeys(const std::vector<std::string>& pairs, Config* config) {
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    if (equals == 0 || equals == std::string::npos)
      return Usage(Cat("--set ", pair, ": KEY=VALUE is expected"));
    config->model_keys[pair.substr(0, equals)] = pair.substr(equals + 1);
  }
  return absl::OkStatus();
}

absl::Status ResolveRun(const RawRun& raw, Config* config) {
  if (!raw.config_file.empty()) {
    const auto text = ReadSmallFile(raw.config_file, 1 << 20);
    if (!text.ok()) return Usage(Cat("--config: ", StdView(text.status().message())));
    HF_RETURN_IF_ERROR(MergeToml(*text, raw.config_file, config));
  }
  for (const auto& [key, values] : raw.values) {
    if (values.empty()) continue;
    const absl::Status status = key->type == KeyType::kList
                                    ? SetList(*key, values, config)
                                    : SetFromText(*key, values.front(), config);
    if (!status.ok()) return Annotate(status, FlagOf(*key));
  }
  for (const auto& [key, on] : raw.flags) {
    if (on) HF_RETURN_IF_ERROR(SetFromText(*key, "true", config));
  }
  HF_RETURN_IF_ERROR(SetOwnKeys(raw.own_keys, config));
  HF_RETURN_IF_ERROR(Validate(*config));
  if (!config->redis.empty()) return ParseRedisUrl(config->redis).status();
  return absl::OkStatus();
}

// `command`: as it stands behind "holdfast", with its space. CLI11 would only say that it did not
// expect an argument; a misspelt flag deserves the right one.
absl::Status CheckExtras(const CLI::App& app, std::string_view command) {
  const std::vector<std::string> extras = app.remaining();
  if (extras.empty()) return absl::OkStatus();
  const std::string& extra = extras.front();
  if (extra.rfind("--", 0) != 0)
    return Usage(Cat("'", extra, "' was not expected; see holdfast", command, " --help"));
  const std::string name = extra.substr(2, extra.find('=') - 2);
  std::string near = command == " run" ? NearestKey(name, kRunOnly) : "";
  std::replace(near.begin(), near.end(), '_', '-');
  return Usage(Cat("unknown flag --", name, near.empty() ? "" : Cat("; did you mean --", near, "?"),
                   "; see holdfast", command, " --help"));
}

void AddEndpoint(CLI::App* app, CommandLine* line) {
  app->add_option("--dir", line->dir, "directory of the run")->type_name("DIR");
  app->add_option("--redis", line->redis,
                  "or: its Redis, redis://host:port (password: HOLDFAST_REDIS_PASSWORD)")
      ->type_name("URL");
  app->add_option("--redis-password-file", line->redis_password_file, "file with the password")
      ->type_name("FILE");
  app->add_option("--run", line->run, "and its name")->type_name("NAME");
}

absl::Status CheckEndpoint(const CommandLine& line) {
  if (line.redis.empty() == line.dir.empty())
    return Usage("name the run by --dir, or by --redis and --run");
  if (!line.redis.empty() && line.run.empty()) return Usage("--redis needs --run");
  if (line.watch && line.json)
    return Usage("--watch is for people and --json for programs: one of them");
  if (!line.redis.empty()) return ParseRedisUrl(line.redis).status();
  return absl::OkStatus();
}

std::string ExitCodes() {
  std::string text = "Exit codes:\n";
  for (int code = 0; code < 128; ++code) {
    const std::string_view what = ExitCodeText(static_cast<ExitCode>(code));
    if (what != "unknown") text += Cat(code < 10 ? "   " : "  ", code, "  ", what, "\n");
  }
  return text;
}

struct Program {
  CommandLine line;
  RawRun raw;
  CLI::App app{kAbout, "holdfast"};
  CLI::App *run, *worker, *status, *stop, *checkpoint, *list, *verify, *write, *sample;

  void AddExport();
  void AddSample();
  Program() {
    app.set_version_flag("--version", Cat("holdfast ", kVersion));
    app.footer(Cat("holdfast COMMAND --help explains a command.\n\n", ExitCodes()));
    app.require_subcommand(0, 1);
    run = app.add_subcommand(
        "run", "Train: start workers on this machine, or join a run; resumes what is there");
    AddRun(run, &raw);
    worker = app.add_subcommand("worker", "A worker; started by holdfast run")->group("");
    worker->add_option("--slot", line.slot);
    worker->add_option("--run", line.run);
    status = app.add_subcommand("status", "Show what a run is doing");
    AddEndpoint(status, &line);
    status->add_flag("--json", line.json, "as JSON");
    status->add_flag("--watch", line.watch, "live, until the run ends; q or Ctrl-C leaves");
    stop =
        app.add_subcommand("stop", "Ask all workers of a run to save and stop at a step boundary");
    AddEndpoint(stop, &line);
    checkpoint =
        app.add_subcommand("checkpoint", "List, verify or export the checkpoints in a directory");
    checkpoint->require_subcommand(1);
    list = checkpoint->add_subcommand("list", "List the checkpoints and whether they are complete");
    verify = checkpoint->add_subcommand("verify", "Read and check every stored byte");
    for (CLI::App* tool : {list, verify})
      tool->add_option("--dir", line.dir, "directory of the run")->required()->type_name("DIR");
    list->add_flag("--json", line.json, "as JSON");
    AddExport();
    AddSample();
    for (CLI::App* part : {&app, run, status, stop, list, verify, write, sample})
      part->allow_extras();
  }
};

// CLI11's own checks print the bounds of the type, and let NaN pass.
CLI::Validator NotNegative() {
  return {[](const std::string& text) -> std::string {
            int64_t value = 0;
            if (absl::SimpleAtoi(text, &value) && value >= 0) return "";
            return Cat("'", text, "' is not an integer from 0");
          },
          ""};
}

CLI::Validator Temperature() {
  return {[](const std::string& text) -> std::string {
            double value = 0;
            if (absl::SimpleAtod(text, &value) && value >= 0 && value <= 100) return "";
            return Cat("'", text, "' is not a number from 0 to 100");
          },
          ""};
}

void AddChoice(CLI::App* tool, CommandLine* line) {
  tool->add_option("--dir", line->dir, "directory of the run")->required()->type_name("DIR");
  tool->add_option("--step", line->step, "the checkpoint of this step [the newest good one]")
      ->check(NotNegative())
      ->type_name("N");
  tool->add_flag("--best", line->best, "the checkpoint with the smallest held-out loss");
}

void Program::AddExport() {
  write = checkpoint->add_subcommand("export", "Write the weights of a checkpoint to one file");
  AddChoice(write, &line);
  write->add_option("--format", line.format, "safetensors")
      ->required()
      ->check(CLI::IsMember({"safetensors"}))
      ->type_name("FORMAT");
  write->add_option("--out", line.out, "file to write; replaced as a whole")
      ->required()
      ->type_name("FILE");
}

void Program::AddSample() {
  sample = app.add_subcommand("sample", "Print what the model says, from a checkpoint of the run");
  AddChoice(sample, &line);
  sample->add_option("--prompt", line.prompt, "text to go on from; token numbers for .bin data")
      ->type_name("TEXT");
  sample->add_option("--tokens", line.tokens, "tokens to draw [200]")
      ->check(CLI::Range(int64_t{1}, int64_t{100'000'000}))
      ->type_name("N");
  sample->add_option("--temperature", line.temperature, "0: always the likeliest token [1]")
      ->check(Temperature())
      ->type_name("T");
  sample->add_option("--top-k", line.top_k, "only among the k likeliest tokens [0: all]")
      ->check(NotNegative())
      ->type_name("K");
  sample->add_option("--seed", line.seed, "the same seed, the same text [1]")->type_name("N");
  sample
      ->add_option("--vocab", line.vocab,
                   "text of each token, one a line (\\n, \\r, \\t, \\\\ and \\xHH are escapes)")
      ->type_name("FILE");
}

absl::StatusOr<CommandLine> Resolve(Program* program) {
  CommandLine& line = program->line;
  HF_RETURN_IF_ERROR(CheckExtras(program->app, ""));
  if (program->run->parsed()) {
    line.kind = CommandLine::Kind::kRun;
    HF_RETURN_IF_ERROR(CheckExtras(*program->run, " run"));
    HF_RETURN_IF_ERROR(ResolveRun(program->raw, &line.config));
    HF_RETURN_IF_ERROR(ResolveDryRun(program->raw, &line));
  } else if (program->worker->parsed()) {
    line.kind = CommandLine::Kind::kWorker;
  } else if (program->status->parsed() || program->stop->parsed()) {
    const bool status = program->status->parsed();
    line.kind = status ? CommandLine::Kind::kStatus : CommandLine::Kind::kStop;
    HF_RETURN_IF_ERROR(
        CheckExtras(status ? *program->status : *program->stop, status ? " status" : " stop"));
    HF_RETURN_IF_ERROR(CheckEndpoint(line));
  } else if (program->list->parsed()) {
    line.kind = CommandLine::Kind::kCheckpointList;
    HF_RETURN_IF_ERROR(CheckExtras(*program->list, " checkpoint list"));
  } else if (program->verify->parsed()) {
    line.kind = CommandLine::Kind::kCheckpointVerify;
    HF_RETURN_IF_ERROR(CheckExtras(*program->verify, " checkpoint verify"));
  } else if (program->write->parsed()) {
    line.kind = CommandLine::Kind::kCheckpointExport;
    HF_RETURN_IF_ERROR(CheckExtras(*program->write, " checkpoint export"));
    if (line.best && line.step >= 0) return Usage("--step and --best exclude each other");
  } else if (program->sample->parsed()) {
    line.kind = CommandLine::Kind::kSample;
    HF_RETURN_IF_ERROR(CheckExtras(*program->sample, " sample"));
    if (line.best && line.step >= 0) return Usage("--step and --best exclude each other");
  } else {
    return Usage(Cat("no command given\n\n", program->app.help()));
  }
  return line;
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                             const std::string& default_model) {
  Program program;
  program.line.config.model = default_model;
  program.line.config.micro_batch_size = 0;  // left open: what is usual depends on the device
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
    if (!arguments.empty() && arguments[0] == "help") reversed.back() = "--help";
    program.app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    program.line.printed = program.app.help();
    return program.line;
  } catch (const CLI::CallForVersion&) {
    program.line.printed = Cat("holdfast ", kVersion, "\n");
    return program.line;
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what();  // "--steps: At Most 1 required but received 2"
    const size_t name = text.find(": At Most 1 ");
    if (name == std::string::npos) return Usage(Cat(text, "; see --help"));
    return Usage(Cat(text.substr(0, name), " is given more than once; it takes one value"));
  } catch (const CLI::Error& error) {
    return Usage(Cat(error.what(), "; see --help"));
  }
  return Resolve(&program);
}

}  // namespace holdfast
