package cmd

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metaroce/metaroce/daemon"
	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/devicetest"
)

// TestPartial: what some NICs did and others refused is told, with exit code 4; what all refused is an error like others.
func TestPartial(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	cfg := daemon.Config{Socket: filepath.Join(t.TempDir(), "d", "mr.sock"), Version: "test"}
	for i := range 2 {
		n := device.Config{Name: string(rune('a'+i)) + "/mr0", Dev: "mr0", Seed: uint64(i + 1), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}}
		for range 2 - i { // the second has one plane only
			w, _ := devicetest.NewWire(4300)
			n.Ports = append(n.Ports, w)
		}
		cfg.NICs = append(cfg.NICs, n)
	}
	d, err := daemon.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	t.Setenv("MR_SOCKET", cfg.Socket)
	for in, want := range map[string]struct {
		code     int
		why, out string
	}{
		"deny 1/0":                                     {fail.Partial, "b/mr0: no such plane: 1", ""},
		"deny 1/0 --json":                              {fail.Partial, "b/mr0: no such plane: 1", `{"nic":"b/mr0","mroce_paths_changed":0,"error":"no such plane: 1"}`},
		"deny 1/0 --nic a/mr0":                         {fail.OK, "", ""},
		"deny 7/0":                                     {fail.Usage, "a/mr0: no such plane: 7; b/mr0: no such plane: 7", ""},
		"deny 0/0 --peer 10.9.9.9":                     {fail.Usage, "no such peer", ""},
		"paths --entropies automatic --plane 1":        {fail.Partial, "b/mr0", ""},
		"profile set polite":                           {fail.OK, "", "b/mr0"},
		"profile set fixed --window 0":                 {fail.Usage, "", ""},
		"paths --entropies explicit:50001 --nic b/mr0": {fail.OK, "", ""},
	} {
		e, out, _ := testEnv()
		app := e.app()
		args, err := arrange(app, append([]string{"nicemu"}, strings.Fields(in)...))
		if err == nil {
			err = app.Run(args)
		}
		if fail.Code(err) != want.code || want.code != fail.OK && !strings.Contains(err.Error(), want.why) || !strings.Contains(out.String(), want.out) {
			t.Errorf("nicemu %s: code %d, %v\n%s", in, fail.Code(err), err, out.String())
		}
	}
}
