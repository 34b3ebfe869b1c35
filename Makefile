# `make help` says what there is. Whether something must run is decided by content (pangu_hif8/freshness.py),
# not by clocks: every stage below is cheap when it is up to date, and safe under -j and beside another make.

PROFILE ?= laptop
SEEDS   ?= 0
ONLY    ?=
TIMEOUT ?=
BESIDE  ?=
REHEARSAL ?=
PYTHON  ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

# ---- bad values end here, before anything is installed -------------------------------------------------
VARIABLES   := PROFILE SEEDS ONLY TIMEOUT BESIDE REHEARSAL PYTHON
PROFILES    := $(sort $(basename $(notdir $(wildcard pangu_hif8/profiles/*.yaml \
                 $(addsuffix /*.yaml,$(PANGU_HIF8_PROFILES))))))
EXPERIMENTS := E0 E1 E2 E3 E4 E5 E6 E7 E8
given       := $(foreach word,$(MAKEOVERRIDES),$(if $(findstring =,$(word)),$(firstword $(subst =, ,$(word)))))
without_digits = $(subst 0,,$(subst 1,,$(subst 2,,$(subst 3,,$(subst 4,,$(subst 5,,$(subst 6,,$(subst \
                 7,,$(subst 8,,$(subst 9,,$(1)))))))))))

ifneq ($(filter-out $(VARIABLES),$(given)),)
  $(error unknown variable $(filter-out $(VARIABLES),$(given)); valid: $(VARIABLES))
endif
ifneq ($(words $(PROFILE)) $(filter $(PROFILES),$(PROFILE)),1 $(strip $(PROFILE)))
  $(error unknown PROFILE "$(PROFILE)"; valid: $(PROFILES))
endif
ifneq ($(filter-out 0 1,$(words $(BESIDE)))$(filter-out $(PROFILES),$(BESIDE)),)
  $(error unknown BESIDE "$(BESIDE)"; valid: $(PROFILES))
endif
ifneq ($(filter-out $(EXPERIMENTS),$(ONLY)),)
  $(error unknown experiment in ONLY: $(filter-out $(EXPERIMENTS),$(ONLY)); valid: $(EXPERIMENTS))
endif
ifneq ($(strip $(call without_digits,$(SEEDS)))$(filter 0%,$(filter-out 0,$(SEEDS))),)
  $(error SEEDS must be whole numbers from 0 separated by spaces, as in SEEDS="0 1 2"; got "$(SEEDS)")
endif
ifeq ($(strip $(SEEDS)),)
  $(error SEEDS is empty; give whole numbers from 0, as in SEEDS="0 1 2")
endif
ifneq ($(strip $(call without_digits,$(TIMEOUT))),)
  $(error TIMEOUT must be a whole number of seconds for one notebook; got "$(TIMEOUT)")
endif

# ---- what is called ------------------------------------------------------------------------------------
VENV    := .venv
RUN     := $(VENV)/bin/python -m pangu_hif8
TRAINED := $(filter-out E0,$(or $(strip $(ONLY)),$(EXPERIMENTS)))
RUNS    := $(foreach seed,$(sort $(SEEDS)),$(foreach id,$(sort $(TRAINED)),$(id)-seed$(seed)))
SCOPE    = --profile $(PROFILE) --seeds "$(SEEDS)" --only "$(ONLY)"
LIMIT    = $(if $(strip $(TIMEOUT)),--timeout $(strip $(TIMEOUT)))

BENCHES := format_speed step_time block_time growth profile_step threads instructions results_page
ALONE   := bench-format bench-steps bench-block bench-growth bench-profile bench-threads bench-instructions bench-gpu
BENCH_bench-format       := format_speed
BENCH_bench-steps        := step_time
BENCH_bench-block        := block_time
BENCH_bench-growth       := growth
BENCH_bench-profile      := profile_step
BENCH_bench-threads      := threads
BENCH_bench-instructions := instructions
BENCH_bench-gpu          := gpu

.PHONY: help venv reproduce pipeline E0-seed0 $(RUNS) report audit beyond rehearse test check lint types sources \
        exhaustive bench $(ALONE) lab clean

help:
	@echo "make reproduce   run the eight experiments as notebooks and write the report"
	@echo "make report      write the report again from results/; BESIDE=tiny: two profiles side by side"
	@echo "make audit       measure where the paper's text and its published code part"
	@echo "make beyond      measure what lies beyond the paper: sweeps of its own and new settings"
	@echo "make rehearse    run PROFILE=paper from start to end with every number made small (some minutes, offline)"
	@echo "make test        run the tests"
	@echo "make check       lint, types, notebook sources without outputs, tests"
	@echo "make exhaustive  prove the number format for all 2^32 float32 inputs (some minutes)"
	@echo "make bench       measure speed and memory, all of it, into benchmarks/results.md (22 to 26 minutes)"
	@echo "make bench-steps measure one thing: -format, -steps, -block, -growth, -profile, -threads, -instructions"
	@echo "make bench-gpu   measure on a GPU what the others measure here (about 10 minutes)"
	@echo "make lab         open the notebooks in JupyterLab"
	@echo "make clean       remove the cache, checkpoints, stamps and results/smoke; other results stay"
	@echo ""
	@echo "PROFILE=$(PROFILE)   one of: $(PROFILES)"
	@echo "SEEDS=\"$(SEEDS)\"       several give means and spread"
	@echo "ONLY=\"E5 E8\"     these experiments only, of: $(EXPERIMENTS)"
	@echo "BESIDE=tiny      another profile, for make report"
	@echo "REHEARSAL=dir    an empty folder for make rehearse; .cache/rehearsal by default"
	@echo "TIMEOUT=3600     seconds that one notebook may take (no limit by default)"
	@echo "PYTHON=python3   the Python, 3.11 or newer, to make $(VENV) with"

venv:
	@for candidate in $(or $(PYTHON),python3.11 python3 python3.12 python3.13 python3.14 python); do \
	  if "$$candidate" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    exec "$$candidate" tools/install.py $(VENV); \
	  fi; \
	done; \
	echo "error: no Python 3.11 or newer with venv found; install one (Debian: python3-venv) or name it: make PYTHON=/path/to/python3" >&2; exit 1

# One process looks at everything first (exit 3: there is work), so that a second call takes seconds.
reproduce:
	+@started=$$(date +%s); $(MAKE) --no-print-directory venv || exit $$?; \
	$(RUN) status $(SCOPE); code=$$?; \
	if [ $$code -ne 3 ]; then exit $$code; fi; \
	$(MAKE) --no-print-directory pipeline && $(RUN) summary --profile $(PROFILE) --started $$started

pipeline: $(RUNS) E0-seed0
	@$(RUN) stage report --profile $(PROFILE) $(LIMIT)

E0-seed0: venv
	@$(RUN) stage E0 --profile $(PROFILE) --seed 0 $(LIMIT)

# The untouched checkpoint comes first: its stage prepares model, text and benchmarks for all others.
$(RUNS): E0-seed0
	@$(RUN) stage $(subst -seed, --seed ,$@) --profile $(PROFILE) $(LIMIT)

report: venv
	@$(RUN) report --profile $(PROFILE) $(if $(strip $(BESIDE)),--beside $(strip $(BESIDE))) $(LIMIT)

audit beyond: venv
	@$(RUN) $@ --profile $(PROFILE) --seeds "$(SEEDS)" $(LIMIT)

rehearse: venv
	@$(VENV)/bin/python tools/rehearse.py $(REHEARSAL)

test: venv
	@$(VENV)/bin/python -m pytest

check: lint types sources test

lint: venv
	@$(VENV)/bin/ruff check --quiet .
	@$(VENV)/bin/ruff format --check --quiet .

types: venv
	@$(VENV)/bin/mypy

sources: venv
	@$(VENV)/bin/nbstripout --verify --keep-id notebooks/*.ipynb

exhaustive: venv
	@$(VENV)/bin/python benchmarks/exhaustive.py

# All of them one after the other, then the page; one alone: make bench-threads. A GPU's is for who has one.
bench: venv
	@started=$$(date +%s); for name in $(BENCHES); do \
	  echo "bench: $$name, $$((($$(date +%s) - started) / 60)) of 22 to 26 minutes gone"; \
	  $(VENV)/bin/python benchmarks/$$name.py || exit $$?; \
	done

$(ALONE): venv
	@$(VENV)/bin/python benchmarks/$(BENCH_$@).py
	@$(VENV)/bin/python benchmarks/results_page.py

lab: venv
	@$(RUN) lab

clean:
	rm -rf .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis results/smoke
	find results \( -name checkpoint -o -name progress -o -name progress.old \) -type d -prune -exec rm -rf {} +
	find results \( -name '*.stamp' -o -name '*.tmp' -o -name .lock -o -name failed.ipynb \) -delete
	find pangu_hif8 tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
