package view_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/nicemu/space"
	"github.com/metaroce/metaroce/nicemu/view"
)

// TestMain lets the test binary be the process inside the new namespaces.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "inside" {
		if err := inside(os.Args[2]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// inside mounts the view and looks at it.
func inside(text string) error {
	var s view.Spec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	before, err := os.ReadDir("/sys/class")
	if err != nil {
		return err
	}
	if _, err := view.Mount(s); err != nil {
		return err
	}
	for path, want := range map[string]string{
		"/sys/class/infiniband/mr0/ports/1/gids/0":   "0000:0000:0000:0000:0000:ffff:0a00:0001\n",
		"/sys/class/infiniband/mr0/ports/1/state":    "4: ACTIVE\n",
		"/sys/class/infiniband/mr1/node_guid":        "0200:0000:0000:0002\n",
		"/sys/class/infiniband_verbs/uverbs1/ibdev":  "mr1\n",
		"/sys/class/infiniband_verbs/abi_version":    "6\n",
		"/sys/class/infiniband/mr0/device/numa_node": "-1\n",
	} {
		got, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if string(got) != want {
			return fmt.Errorf("%s: %q", path, got)
		}
	}
	// Nothing else went away.
	for _, e := range before {
		if _, err := os.Lstat("/sys/class/" + e.Name()); err != nil && !s.Old {
			continue // another network namespace's sysfs may lack a class
		} else if err != nil {
			return err
		}
	}
	if _, err := os.Stat("/sys/class/net/lo/address"); err != nil {
		return err
	}
	for _, dev := range []string{"/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1", "/dev/null", "/dev/zero"} {
		f, err := os.OpenFile(dev, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		st, err := f.Stat()
		if err != nil || st.Mode()&os.ModeCharDevice == 0 {
			return fmt.Errorf("%s: %v, %w", dev, st.Mode(), err)
		}
		if _, err := f.Write([]byte("x")); err != nil {
			return err
		}
		f.Close()
	}
	if _, err := os.Stat("/dev/fd/0"); err != nil {
		return err
	}
	return nil
}

func spec(t *testing.T) view.Spec {
	t.Helper()
	return view.Spec{Work: t.TempDir(), NICs: []view.NIC{
		{Name: "mr0", GUID: view.GUID(0x0200_0000_0000_0001), GIDs: []string{view.GID(netip.MustParseAddr("10.0.0.1"))}, Netdev: "mr0"},
		{Name: "mr1", GUID: view.GUID(0x0200_0000_0000_0002), GIDs: []string{view.GID(netip.MustParseAddr("fd00::1"))}},
	}}
}

// skip leaves a test out because this machine cannot run it. CI sets MR_TEST_REQUIRE=all: there it is a failure.
func skip(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("MR_TEST_REQUIRE") == "all" {
		t.Fatalf("would skip, and MR_TEST_REQUIRE=all asks for every test: "+format, args...)
	}
	t.Skipf(format, args...)
}

func TestMount(t *testing.T) {
	for _, rootless := range []bool{false, true} {
		for _, old := range []bool{false, true} {
			for _, net := range []bool{false, true} {
				t.Run(fmt.Sprintf("rootless=%v/old=%v/net=%v", rootless, old, net), func(t *testing.T) {
					c := &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
					if net {
						c.Cloneflags |= unix.CLONE_NEWNET
					}
					if rootless {
						space.IntoUserNS(c)
					} else if os.Getuid() != 0 {
						skip(t, "needs root")
					}
					s := spec(t)
					s.Old = old
					text, err := json.Marshal(s)
					if err != nil {
						t.Fatal(err)
					}
					cmd := exec.Command(os.Args[0], "inside", string(text))
					cmd.SysProcAttr, cmd.WaitDelay = c, 10*time.Second
					out, err := cmd.CombinedOutput()
					if cmd.Process == nil {
						skip(t, "%v", err)
					}
					if err != nil {
						t.Errorf("%v\n%s", err, out)
					}
				})
			}
		}
	}
}
