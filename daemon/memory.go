package daemon

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of the default memory limit.
const (
	memoryLimitMin = 128 << 20
	memoryLimitMax = 1 << 30
)

// guardMemory switches the garbage collector off below a limit. The loop allocates nothing; what control requests
// leave behind is collected when it amounts to something. Where what is in use comes near the limit (a large lab,
// thousands of QPs) the limit moves up, or the collector would run without end.
func guardMemory(limit int64) (stop func()) {
	if limit == 0 {
		limit = memoryLimitMax
		var si unix.Sysinfo_t
		if unix.Sysinfo(&si) == nil {
			limit = min(limit, max(memoryLimitMin, int64(si.Totalram)*int64(si.Unit)/8)) //nolint:unconvert,nolintlint // their types differ by architecture
		}
	}
	debug.SetMemoryLimit(limit)
	debug.SetGCPercent(-1)
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(5 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if used := liveBytes(); used > limit/2 {
					limit = 2 * used
					debug.SetMemoryLimit(limit)
				}
			}
		}
	}()
	return func() { close(done) }
}

// liveBytes is what the last collection left; before the first, nothing is known, and everything counts.
func liveBytes() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	if s[0].Value.Kind() == metrics.KindUint64 {
		if v := s[0].Value.Uint64(); v > 0 {
			return int64(v)
		}
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
