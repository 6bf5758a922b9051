//go:build dpdk

package dpdkx

import (
	"testing"
	"time"
)

// What a driver unmaps stays until the burst that is under way has ended.
func TestUnmapWaits(t *testing.T) {
	page := mapPage()
	done := make(chan struct{})
	underBurst(func() {
		go func() {
			unmapPage(page)
			close(done)
		}()
		time.Sleep(50 * time.Millisecond)
		select {
		case <-done:
			t.Error("unmapped under a burst")
		default:
			touch(page) // a crash, if it was
		}
	})
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Error("still mapped after the burst")
	}
}
