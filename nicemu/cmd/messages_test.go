package cmd

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metaroce/metaroce/nicemu/fail"
	"github.com/metaroce/metaroce/nicemu/lab"
	"github.com/metaroce/metaroce/nicemu/serve"
)

// TestWrongUsage: what is typed wrong ends with code 2 and says what is meant, whatever else stands in the line.
func TestWrongUsage(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv("MR_SOCKET", "")
	for in, why := range map[string]string{
		"prob --help":                            "no command \"prob\"",
		"statsu --json":                          "did you mean `nicemu status`?",
		"deny x":                                 "no command \"deny\"; `nicemu --help` lists them",
		"lab fo --help":                          "no command \"fo\"; `nicemu lab --help`",
		"stats --interval abc":                   "--interval abc: it takes a time such as 500ms",
		"up --mtu abc":                           "--mtu abc: it takes a whole number",
		"up --addr":                              "--addr needs a value",
		"up --addr 10.0.0.1/24 --mtu 100":        "--mtu 100: a number from 576 to 65000",
		"up --addr 10.0.0.1/24 --group no-such":  "no group of that name",
		"up --addr 10.0.0.1/24 --wire udp:1.2:x": "is not udp:ADDR",
		"lab up two-hosts --group no-such":       "no group of that name",
		"lab plane 2":                            "for example: nicemu lab plane 2 down",
		"plane 2 dwon":                           "\"2 dwon\" is no plane and up or down",
		"lab run":                                "which lab, and which command?",
		"lab run lossy":                          "nicemu lab run lossy -- COMMAND",
		"lab run lossy true x":                   "nicemu lab run lossy -- true x",
		"lab graph nosuch":                       "no lab that is up, no file and no built-in lab",
		"lab down a b":                           "what is \"b\"?",
	} {
		e, _, _ := testEnv()
		app := e.app()
		args, err := arrange(app, append([]string{"nicemu"}, strings.Fields(in)...))
		if err == nil {
			err = app.Run(args)
		}
		if fail.Code(err) != fail.Usage || !strings.Contains(err.Error(), why) {
			t.Errorf("nicemu %s: code %d, %v; want %q", in, fail.Code(err), err, why)
		}
	}
}

func TestNothingUp(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	_, err := lab.Find(lab.KindLab, "mine")
	if fail.Code(err) != fail.Failed || !strings.Contains(err.Error(), `no lab "mine" is up: none is`) {
		t.Error(err)
	}
}

func TestColumns(t *testing.T) {
	var b strings.Builder
	rows := [][]string{{"a/mr0", "10.0.0.1", "7", "-"}, {"long-name/mr0", "10.0.0.12", "1234", "2.5"}}
	if err := columns(&b, []string{"NIC", "PEER", "SENT", "RTT µs"}, rows); err != nil {
		t.Fatal(err)
	}
	want := `
NIC            PEER       SENT  RTT µs
a/mr0          10.0.0.1      7       -
long-name/mr0  10.0.0.12  1234     2.5
`
	if d := cmp.Diff(want[1:], b.String()); d != "" {
		t.Error(d)
	}
}

// TestPaths: the transport's own fields become ours, with units, and no number loses digits.
func TestPaths(t *testing.T) {
	const text = `{"nics":[{"nic":"a/mr0","peers":[{"Local":"10.0.0.1","Remote":"10.0.0.2","State":"up","PeerID":170541136485568123,
		"QPs":1,"SRTT":23989,"Planes":[{"Plane":0,"State":"active","Window":262144,"InFlight":1,"Sent":1136,"Lost":3,
		"Paths":[{"Path":7,"SrcPort":51128,"Sent":304,"SRTT":26305},{"Path":0,"SrcPort":51120}]}]}]},{"nic":"b/mr0","peers":null}]}`
	var p enginePaths
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	all := p.public().NICs
	if got := all[0].Peers[0]; got.ID != "025de24293d04e7b" || got.SRTT != 23.989e-6 || got.Planes[0].Paths[0].SRTT != 26.305e-6 {
		t.Errorf("%+v", got)
	}
	if all[1].Peers == nil {
		t.Error("no peers must be an empty list in JSON")
	}
	e, out, _ := testEnv()
	if err := e.printPaths(all, true); err != nil {
		t.Fatal(err)
	}
	want := `
NIC    PEER      STATE  PLANE  PLANE STATE  PATHS  RTT µs  WINDOW KiB  IN FLIGHT KiB  SENT packets  LOST  SPURIOUS
a/mr0  10.0.0.2  up         0  active           2    24.0         256              1          1136     3         0

NIC    PEER      PLANE  PATH  SOURCE PORT  RTT µs  OUTSTANDING  SENT packets  LOST
a/mr0  10.0.0.2      0     7        51128    26.3            0           304     0
a/mr0  10.0.0.2      0     0        51120       -            0             0     0
`
	if d := cmp.Diff(want[1:], out.String()); d != "" {
		t.Error(d)
	}
}

func TestDescribeStates(t *testing.T) {
	got := describeStates([]serve.ImpairState{
		{NIC: "a/mr0", Plane: 0, Words: "clear"}, {NIC: "a/mr0", Plane: 1, Words: "down"}, {NIC: "a/mr0", Plane: 2, Words: "loss=1%"},
		{NIC: "b/mr0", Plane: 0, Words: "clear"}, {NIC: "b/mr0", Plane: 1, Words: "down"}, {NIC: "b/mr0", Plane: 2, Words: "clear"},
	})
	if d := cmp.Diff([]string{"plane 1: down", "plane 2 of a/mr0: loss=1%"}, got); d != "" {
		t.Error(d)
	}
}

// TestFullDisk: results that could not be written are a failure; a reader that left is none.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	stdout, stderr := os.Stdout, os.Stderr
	defer func() { os.Stdout, os.Stderr = stdout, stderr }()
	os.Stdout = full
	if os.Stderr, err = os.Create(filepath.Join(t.TempDir(), "err")); err != nil {
		t.Fatal(err)
	}
	defer os.Stderr.Close()
	code := Main([]string{"nicemu", "help", "environment"}, "test")
	text, _ := os.ReadFile(os.Stderr.Name())
	if code != fail.Failed || !strings.Contains(string(text), "cannot write the results") {
		t.Errorf("code %d, %s", code, text)
	}
}

func TestRootCause(t *testing.T) {
	if err := rootCause(fail.Failf("dial: %w", errors.New("refused"))); err.Error() != "refused" {
		t.Error(err)
	}
}
