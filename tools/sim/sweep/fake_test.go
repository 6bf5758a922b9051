package sweep

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/tools/sim/result"
)

// This test binary is also the program that runs a plan ("run") and the worker of a job array ("task").
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "run" {
		os.Exit(fakeRun(os.Args[2:]))
	}
	if len(os.Args) > 3 && os.Args[1] == "task" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		k, _ := strconv.Atoi(os.Args[3])
		err := Worker(ctx, os.Args[2], k)
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(fail.Code(err))
	}
	os.Exit(m.Run())
}

// fakeRun behaves as the override mode= says, once only when the plan names a directory for notes and once= is given.
func fakeRun(args []string) int {
	plan, set, seed := args[len(args)-1], map[string]string{}, uint64(0)
	for i := range args {
		switch args[i] {
		case "--set":
			k, v, _ := strings.Cut(args[i+1], "=")
			set[k] = v
		case "--seed":
			seed, _ = strconv.ParseUint(args[i+1], 10, 64)
		}
	}
	runs := filepath.Join(filepath.Dir(plan), "runs")
	if f, err := os.OpenFile(runs, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err == nil { // who ran, for the tests to count
		fmt.Fprintf(f, "%s %d\n", set["mode"], seed)
		f.Close()
	}
	h := sha256.New()
	for _, k := range slices.Sorted(mapKeysOf(set)) {
		fmt.Fprintln(h, k, set[k])
	}
	fmt.Fprintln(h, seed)
	r := result.Result{Plan: filepath.Base(plan), Seed: seed, Title: fmt.Sprintf("%x", h.Sum(nil)[:8]), Summary: result.Summary{Flows: 3, FCTMax: float64(seed) / 8},
		Groups: []result.Group{{Seconds: 2, BusBps: 5}, {Seconds: 3, BusBps: 4}}}
	code := misbehave(set["mode"], filepath.Dir(plan), &r)
	if code != 0 && code != fail.Partial {
		return code
	}
	if set["mode"] != "unsealed" {
		if err := r.Seal(); err != nil {
			return fail.Failed
		}
	}
	data, _ := json.Marshal(r)
	fmt.Println(string(data))
	return code
}

func mapKeysOf(m map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// term is caught as by mroce: a partial result and 130.
var term = make(chan os.Signal, 1)

func misbehave(mode, dir string, r *result.Result) int {
	signal.Notify(term, syscall.SIGTERM)
	if mode == "once" { // fails the first time
		if f, err := os.OpenFile(filepath.Join(dir, fmt.Sprint("once-", r.Seed)), os.O_CREATE|os.O_EXCL, 0o644); err == nil {
			f.Close()
			fmt.Fprintln(os.Stderr, "not this time")
			return fail.Failed
		}
	}
	switch mode {
	case "fail":
		fmt.Fprintln(os.Stderr, "first line\nthe reason")
		return fail.Failed
	case "usage":
		fmt.Fprintln(os.Stderr, "plan.yaml:3: wrong")
		return fail.Usage
	case "partial":
		r.Partial, r.Why = true, "until came first"
		return fail.Partial
	case "quietly-partial":
		r.Partial = true
	case "garbage":
		fmt.Println("no JSON")
	case "seed":
		r.Seed++
	case "edit":
		os.WriteFile(filepath.Join(dir, "plan.yaml"), []byte("name: edited\n"), 0o644)
	case "memory":
		b := make([]byte, 300<<20)
		for i := range b {
			b[i] = 1
		}
		time.Sleep(20 * time.Second)
	case "killed":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "finish": // ends well, although it was asked to stop
		<-term
	case "slow", "hang":
		d := 300 * time.Millisecond
		if mode == "hang" {
			d = 30 * time.Second
		}
		select {
		case <-term:
			r.Partial = true
			json.NewEncoder(os.Stdout).Encode(r)
			return fail.Stopped
		case <-time.After(d):
		}
	}
	return 0
}
