package cmd

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metaroce/metaroce/daemon/api"
	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/serve"
	"github.com/metaroce/metaroce/nicemu/lab"
)

// TestWrongUsage: what is typed wrong ends with code 2 and says what is meant, whatever else stands in the line.
func TestWrongUsage(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv("MR_SOCKET", "")
	for in, why := range map[string]string{
		"prob --help":                            "no command \"prob\"",
		"statsu --json":                          "did you mean `nicemu status`?",
		"danny x":                                "no command \"danny\"; `nicemu --help` lists them",
		"deny x":                                 "\"x\" is no path: PLANE/PATH",
		"deny":                                   "which path? for example: nicemu deny 1/5",
		"deny 1/5 --source-port 7":               "an entropy is a port from 1 to 65535",
		"allow 1/-5":                             "\"1/-5\" is no path",
		"probe":                                  "which peer? its address",
		"probe 10.0.0.2 --size x":                "--size x: it takes a size",
		"probe 10.0.0.2 --count 0":               "--count at least 1",
		"paths --entropies some":                 "want automatic, explicit:",
		"paths --entropies explicit:70000":       "want automatic, explicit:",
		"profile set":                            "which profile? for example",
		"profile set fixed --window x":           "--window x: it takes a size",
		"profile st x":                           "did you mean `nicemu profile set`",
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

// TestPaths: what the daemon says of paths, for people.
func TestPaths(t *testing.T) {
	const text = `{"nics":[{"nic":"a/mr0","peers":[{"local":"10.0.0.1","remote":"10.0.0.2","state":"up","peer_id":"025de24293d04e7b",
		"mroce_qps":1,"mroce_srtt_seconds":23.989e-6,"planes":[{"plane":0,"state":"active","mroce_window_bytes":262144,"mroce_in_flight_bytes":1,"mroce_grant_bytes":1048576,
		"mroce_base_rtt_seconds":20e-6,"mroce_queue_delay_seconds":4.2e-6,"mroce_delay_target_seconds":2e-3,
		"mroce_sent_packets_total":1136,"mroce_lost_packets_total":3,"paths":[
		{"path":7,"source_port":51128,"state":"active","mroce_sent_packets_total":304,"mroce_srtt_seconds":26.305e-6,"mroce_ce_marks_total":2},
		{"path":0,"source_port":51120,"state":"quarantined","denied":true}]}]}]}]}`
	var p pathsInfo
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	all := p.NICs
	e, out, _ := testEnv()
	if err := e.printPaths(all, true); err != nil {
		t.Fatal(err)
	}
	want := `
NIC    PEER      STATE  PLANE  PLANE STATE  PATHS  RTT µs  BASE µs  QUEUE µs  TARGET µs  WINDOW KiB  GRANT KiB  IN FLIGHT KiB  SENT packets  LOST  SPURIOUS
a/mr0  10.0.0.2  up         0  active           2    24.0     20.0       4.2     2000.0         256       1024              1          1136     3         0

NIC    PEER      PLANE  PATH  SOURCE PORT  STATE   RTT µs  OUTSTANDING  SENT packets  LOST  MARKED
a/mr0  10.0.0.2      0     7        51128  active    26.3            0           304     0       2
a/mr0  10.0.0.2      0     0        51120  denied       -            0             0     0       0
`
	if d := cmp.Diff(want[1:], out.String()); d != "" {
		t.Error(d)
	}
}

// TestPlanes: wires and what their receiving sides measure and grant; a NIC with RoCEv2 only has no such side.
func TestPlanes(t *testing.T) {
	const text = `[{"name":"a/mr0","planes":[{"plane":0,"wire":"tap:a-mr0.0","admin":"up","link":"up","rate_bits_per_second":0,
		"mroce_timing_noise_seconds":2e-3,"receive":{"mroce_receive_rate_bits_per_second":4.871e9,"mroce_grant_factor_ratio":1.25,"mroce_senders":4,
		"mroce_given_grant_bytes":65536}}]},
		{"name":"b/mr0","planes":[{"plane":0,"wire":"mem:","admin":"down","link":"up","rate_bits_per_second":10000000000}]}]`
	var nics []api.NICStatus
	if err := json.Unmarshal([]byte(text), &nics); err != nil {
		t.Fatal(err)
	}
	e, out, _ := testEnv()
	if err := e.printPlanes(nics); err != nil {
		t.Fatal(err)
	}
	want := `
NIC    PLANE  WIRE         LINK  SWITCHED  RATE Gbit/s  NOISE µs  RECEIVED Gbit/s  GRANT FACTOR  SENDERS  GRANTS KiB
a/mr0      0  tap:a-mr0.0  up    up                  -    2000.0             4.87          1.25        4          64
b/mr0      0  mem:         up    down            10.00         -                -             -        -           -
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
