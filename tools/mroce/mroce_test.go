package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/daemon/fail"
)

// mroce runs the program.
func mroce(args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(context.Background(), append([]string{"mroce"}, args...), &o, &e)
	return code, o.String(), e.String()
}

func TestVopr(t *testing.T) {
	for _, x := range []struct {
		args string
		code int
		say  string // on stdout or stderr
	}{
		{"vopr", fail.OK, "1 seeds from 1: clean"},
		{"vopr --seed 3 --seeds 4", fail.OK, "4 seeds from 3: clean"},
		{"vopr --seed 3 --with loss,srq", fail.OK, "srq"},
		{"vopr --seed 3 --trace", fail.OK, "connection 0, life 1"},
		{"vopr 3", fail.Usage, "--seed N"},
		{"vopr --seeds 0", fail.Usage, "at least 1"},
		{"vopr --seeds 5 --trace", fail.Usage, "one seed"},
		{"vopr --sed 5", fail.Usage, "-sed"},
		{"vopr --seed x", fail.Usage, "seed"},
		{"vopr --with los", fail.Usage, "no feature"},
		{"vopr --transport tcp", fail.Usage, "metaroce or rocev2"},
		{"vorp", fail.Usage, "vorp"},
	} {
		code, out, errs := mroce(strings.Fields(x.args)...)
		if code != x.code || !strings.Contains(out+errs, x.say) {
			t.Errorf("mroce %s: code %d, want %d and %q\n%.300s\n%s", x.args, code, x.code, x.say, out, errs)
		}
	}
}

// TestVoprJSON: the object at the end has the same fields whatever happened.
func TestVoprJSON(t *testing.T) {
	code, out, _ := mroce("vopr", "--seed", "5", "--seeds", "3", "--json")
	var got map[string]any
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != fail.OK {
		t.Fatal(code, err, out)
	}
	for _, k := range []string{"first_seed", "seeds", "failed", "requests", "packets", "steps", "virtual_seconds", "wall_seconds", "partial", "transport"} {
		if _, is := got[k]; !is {
			t.Errorf("no field %q in %s", k, out)
		}
	}
}

// TestCompletion: each shell has its script, which bash and zsh can read.
func TestCompletion(t *testing.T) {
	for shell, say := range map[string]string{"bash": "-F _mroce mroce", "zsh": "#compdef mroce", "fish": "__fish_mroce"} {
		code, out, errs := mroce("completion", shell)
		if code != fail.OK || !strings.Contains(out, say) {
			t.Errorf("%s: code %d, want %q\n%s%s", shell, code, say, out, errs)
		}
		if path, err := exec.LookPath(shell); err == nil && shell != "fish" {
			c := exec.Command(path, "-n")
			c.Stdin = strings.NewReader(out)
			if said, err := c.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", shell, err, said)
			}
		}
	}
	if code, _, _ := mroce("completion", "csh"); code != fail.Usage {
		t.Errorf("csh: code %d", code)
	}
}

// TestInterrupted: Ctrl-C ends with what there is.
func TestInterrupted(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	var o, e bytes.Buffer
	if code := run(ctx, []string{"mroce", "vopr", "--seeds", "1000"}, &o, &e); code != fail.Stopped || !strings.Contains(o.String(), "partial") {
		t.Errorf("code %d: %s %s", code, o.String(), e.String())
	}
}

// TestCollbenchUsage: what cannot be is said before anything is started.
func TestCollbenchUsage(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "collbench-rank"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MR_LIB", dir)
	for args, say := range map[string]string{
		"collbench all-reduze":           "no collective \"all-reduze\"",
		"collbench --ranks 17":           "2 to 16",
		"collbench --ranks 1":            "2 to 16",
		"collbench --group 9":            "--group 9: 1 to 8",
		"collbench --table 5":            "8 to 12",
		"collbench --type half":          "float, double",
		"collbench --max 4MB all-reduce": "4MB",
		"collbench --factor 1":           "not above 1",
	} {
		code, out, errs := mroce(strings.Fields(args)...)
		if code != fail.Usage || !strings.Contains(out+errs, say) {
			t.Errorf("mroce %s: code %d, want %d and %q\n%s%s", args, code, fail.Usage, say, out, errs)
		}
	}
}

// TestRCCLEnv: what is printed is a shell's, and has each way's own variables.
func TestRCCLEnv(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "collbench-rank"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MR_LIB", dir)
	for args, want := range map[string]string{
		"rccl env":                             dir + "/librccl-net.so MetaRoCE LOC  ",
		"rccl env --way ib":                    "none IB LOC =mr0 ",
		"rccl env --one-gpu --host left":       dir + "/librccl-net.so MetaRoCE LOC  left",
		"rccl env --way ib --one-gpu --host b": "none IB LOC =mr0 b",
	} {
		code, out, errs := mroce(strings.Fields(args)...)
		sh := exec.Command("sh", "-euc", out+`echo "$NCCL_NET_PLUGIN $NCCL_NET $NCCL_NET_GDR_LEVEL ${NCCL_IB_HCA:-} ${NCCL_HOSTID:-}"; test "$LD_LIBRARY_PATH" = "$MR_LIB:x"`)
		sh.Env = append(os.Environ(), "LD_LIBRARY_PATH=x")
		said, err := sh.Output()
		if code != fail.OK || err != nil || strings.TrimSuffix(string(said), "\n") != want {
			t.Errorf("mroce %s: code %d, %v, the shell says %q, want %q\n%s%s", args, code, err, said, want, out, errs)
		}
	}
	if code, _, _ := mroce("rccl", "env", "--way", "ucx"); code != fail.Usage {
		t.Errorf("--way ucx: code %d", code)
	}
	code, out, _ := mroce("rccl", "env", "--json")
	var set []map[string]string
	if err := json.Unmarshal([]byte(out), &set); err != nil || code != fail.OK || len(set) < 5 || set[0]["name"] == "" || set[0]["why"] == "" {
		t.Error(code, err, out)
	}
}
