package serve

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/metaroce/metaroce/daemon/fail"
	"github.com/metaroce/metaroce/daemon/rundir"
	"github.com/metaroce/metaroce/device"
)

// What both daemons' `up` makes of its flags.

// NewNIC is a NIC by its flags. The name is HOST/mrN, mrN of this host, or nothing for its mr0; addresses have prefix lengths or
// none; transport is a policy.
func NewNIC(name string, addrs []string, transport string) (NIC, error) {
	n := NIC{Name: name, Transport: transport}
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	host, _, _ = strings.Cut(host, ".")
	switch {
	case n.Name == "":
		n.Name = host + "/mr0"
	case !strings.Contains(n.Name, "/"):
		n.Name = host + "/" + n.Name
	}
	_, n.Dev, _ = strings.Cut(n.Name, "/")
	if n.Dev == "" || strings.ContainsAny(n.Dev, "/ ") {
		return n, fail.Usagef("--nic %s: a NIC is HOST/mrN", n.Name)
	}
	if _, err := device.ParsePolicy(transport); err != nil || transport == "" {
		return n, fail.Usagef("--transport %s: auto, metaroce or rocev2", transport)
	}
	if len(addrs) == 0 {
		return n, fail.Usagef("which address? --addr 10.0.0.1/24 (it becomes the NIC's GID)")
	}
	for _, s := range addrs {
		pre, err := netip.ParsePrefix(s)
		if err != nil {
			a, errA := netip.ParseAddr(s)
			if errA != nil {
				return n, fail.Usagef("--addr %s is not an address such as 10.0.0.1/24", s)
			}
			pre = netip.PrefixFrom(a, a.BitLen())
		}
		n.Addrs = append(n.Addrs, pre.Addr())
		n.Prefixes = append(n.Prefixes, pre)
	}
	return n, nil
}

// GUID of a NIC: it keeps it as long as its names stay. The first is a lab's, or empty for this machine's.
func GUID(lab, host, dev string) uint64 {
	if lab == "" {
		machine, _ := os.ReadFile("/etc/machine-id") // without it the names have to do
		lab = string(machine)
	}
	h := sha256.Sum256([]byte(lab + "|" + host + "|" + dev))
	return 0x0200_0000_0000_0000 | binary.BigEndian.Uint64(h[:])>>8
}

// SecretSeed is for a NIC that strangers may reach; tags and cookies come from another secret (MR-SEC-001). Labs have the
// seed of their file, so that they can be repeated.
func SecretSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// Follow shows a daemon's log until ctx ends or the daemon does.
func Follow(ctx context.Context, log string, p *rundir.Process, to io.Writer) error {
	f, err := os.Open(log)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if _, err := io.Copy(to, f); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(200 * time.Millisecond):
		}
		if !p.Alive() {
			_, _ = io.Copy(to, f) // what it said last; that it ended says more than an error here
			return fail.Failf("the daemon ended by itself")
		}
	}
}
