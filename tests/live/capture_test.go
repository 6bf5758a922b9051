//go:build live

package live

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestCapture: Wireshark's own dissector must see a sane RoCEv2 packet in whatever we send, on every wire.
func TestCapture(t *testing.T) {
	needProgram(t, "tshark")
	for _, wire := range []string{"tap", "udp", "mem"} {
		t.Run(wire, func(t *testing.T) {
			l := up(t, spec{wire: wire})
			file := filepath.Join(l.dir, "a.pcapng")
			capture := &job{name: "capture", cmd: l.command(30*time.Second, "lab", "capture", "a", "--plane", "0", "-w", file)}
			capture.cmd.Stdout, capture.cmd.Stderr = &capture.out, &capture.out
			capture.begin(t)
			time.Sleep(500 * time.Millisecond)
			l.pair(t, 20*time.Second, "a", "b", "ib_write_bw", "-s", "4096", "-n", "100")
			l.pair(t, 20*time.Second, "a", "b", "ib_read_bw", "-s", "4096", "-n", "100")
			l.pair(t, 20*time.Second, "a", "b", "ib_atomic_lat", "-n", "20")
			if err := capture.cmd.Process.Signal(sigterm); err != nil {
				t.Fatal(err)
			}
			<-capture.done

			fields := tshark(t, file, "-Y", "udp.port==4791 or infiniband", "-T", "fields", "-e", "udp.dstport", "-e", "infiniband.bth.opcode", "-e", "infiniband.bth.destqp", "-e", "infiniband.bth.p_key")
			lines := strings.Split(strings.TrimSpace(fields), "\n")
			if len(lines) < 50 {
				t.Fatalf("only %d RoCE packets captured:\n%s\n%s", len(lines), fields, capture.out.String())
			}
			for _, line := range lines {
				f := strings.Split(line, "\t")
				if len(f) != 4 || f[0] != "4791" || f[1] == "" || f[2] == "" || f[3] == "" {
					t.Fatalf("not UDP 4791 with a BTH: %q", line)
				}
			}
			if bad := tshark(t, file, "-Y", "_ws.malformed"); bad != "" {
				t.Errorf("malformed packets:\n%s", firstLines(bad, 10))
			}
			t.Logf("%d packets, e.g. %q", len(lines), lines[len(lines)/2])
		})
	}
}

func tshark(t testing.TB, file string, args ...string) string {
	t.Helper()
	cmd := exec.Command("tshark", append([]string{"-n", "-r", file}, args...)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark %v: %v\n%s", args, err, errs.String())
	}
	return string(out)
}

func firstLines(s string, n int) string {
	lines := strings.SplitN(s, "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "\n")
}

func fields(s string) []string { return strings.Fields(s) }
