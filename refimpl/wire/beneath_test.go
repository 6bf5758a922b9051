//go:build dpdk

package wire

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestBeneath: what the kernel says of an interface, up to its end. In a network namespace of the test's thread, which ends
// with it.
func TestBeneath(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("MR_TEST_REQUIRE") == "all" {
			t.Fatal("would skip: root makes network namespaces")
		}
		t.Skip("root makes network namespaces")
	}
	runtime.LockOSThread() // never unlocked: the thread must not come back
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	near, far := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far"}, "far"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(netlink.LinkAdd(near))
	peer, err := netlink.LinkByName(far)
	must(err)
	b := newBeneath("net_af_packet", uint32(near.Index))
	defer b.close()
	want := func(up bool, when string) {
		t.Helper()
		for range 500 { // the kernel tells carriers late
			if b.up() == up {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		if b.up() != up {
			t.Errorf("%s: up is %v", when, !up)
		}
	}
	want(false, "as made")
	must(netlink.LinkSetUp(near))
	want(false, "without a carrier")
	must(netlink.LinkSetUp(peer))
	want(true, "with a carrier")
	if n := testing.AllocsPerRun(100, func() { b.up() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	must(netlink.LinkSetName(near, "other"))
	must(netlink.LinkSetUp(near)) // names of what is up could not be changed once
	want(true, "renamed")
	must(netlink.LinkSetDown(peer))
	want(false, "its peer went down")
	must(netlink.LinkSetUp(peer))
	want(true, "and came back")
	must(netlink.LinkDel(near))
	want(false, "deleted")
	if newBeneath("net_memif", 1) != nil || newBeneath("net_tap", 0) != nil || !(*beneath)(nil).up() {
		t.Error("a port without an interface")
	}
}
