// Package netdev watches the addresses of network interfaces: an emulated NIC has those of its host's interface, as a
// real one does.
package netdev

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/metaroce/metaroce/daemon/api"
)

// again is how long a change that could not be told waits.
const again = time.Second

// Watch calls changed with all addresses of an interface whenever they have become others, until ctx ends; when it fails,
// again after a while. What it finds at the beginning is no change. ns is a network namespace, or -1 for that of the process.
func Watch(ctx context.Context, ns int, names []string, changed func(name string, addrs []netip.Addr) error) error {
	at := netns.None()
	if ns >= 0 {
		at = netns.NsHandle(ns)
	}
	h, err := netlink.NewHandleAt(at)
	if err != nil {
		return fmt.Errorf("cannot ask for addresses: %w", err)
	}
	defer h.Close()
	updates := make(chan netlink.AddrUpdate, 64)
	lost := make(chan error, 1)
	o := netlink.AddrSubscribeOptions{ErrorCallback: func(err error) {
		select {
		case lost <- err:
		default:
		}
	}}
	if ns >= 0 {
		o.Namespace = &at
	}
	if err := netlink.AddrSubscribeWithOptions(updates, ctx.Done(), o); err != nil {
		return fmt.Errorf("cannot watch addresses: %w", err)
	}
	last := map[string][]netip.Addr{}
	for _, n := range names {
		last[n], _ = addresses(h, n)
	}
	var later <-chan time.Time
	for {
		select {
		case <-later:
		case <-ctx.Done():
			return nil
		case err := <-lost:
			return fmt.Errorf("cannot watch addresses any more: %w", err)
		case _, ok := <-updates:
			if !ok {
				return nil
			}
		}
		later = nil
		for _, n := range names {
			now, err := addresses(h, n)
			if err != nil || slices.Equal(now, last[n]) {
				continue
			}
			if changed(n, now) != nil {
				later = time.After(again)
				continue
			}
			last[n] = now
		}
	}
}

// Unheard is the error of telling a daemon, unless the daemon has heard and refused: then once more changes nothing.
func Unheard(err error) error {
	var refused *api.Error
	if errors.As(err, &refused) {
		return nil
	}
	return err
}

// addresses are those of an interface that peers elsewhere can use, sorted.
func addresses(h *netlink.Handle, name string) ([]netip.Addr, error) {
	l, err := h.LinkByName(name)
	if err != nil {
		return nil, err
	}
	list, err := h.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, a := range list {
		if x, ok := netip.AddrFromSlice(a.IP); ok && a.Scope == unix.RT_SCOPE_UNIVERSE {
			addrs = append(addrs, x.Unmap())
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}

// Texts prints addresses for the daemon.
func Texts(addrs []netip.Addr) []string {
	list := []string{}
	for _, a := range addrs {
		list = append(list, a.String())
	}
	return list
}
