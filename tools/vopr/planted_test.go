//go:build planted

package vopr

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/metaroce/metaroce/internal/planted"
)

// plantedBugs says how many seeds the checkers have for each bug, and which features those seeds have; bugs that are
// not listed have few, with whatever features the seeds draw. Measured needs are in docs/testing.md's terms: the log.
var plantedBugs = map[planted.Bug]struct {
	seeds int
	with  Feature
}{
	planted.UnknownQPSilent:      {600, QPGone},
	planted.FatalRefusalOnce:     {3000, Bad | Loss | Burst},
	planted.FatalNotCumulative:   {1000, Bad | Loss},
	planted.NoZeroWindowProbe:    {3000, Send | Late | Loss},
	planted.RNREarlyCounted:      {1500, Send | Late | RNRFinite | Reorder},
	planted.NoQPCopiesCounted:    {1000, Skew},
	planted.NoReadProbe:          {1000, Read | QPGone | Loss},
	planted.DeadRequesterMute:    {1500, Read | QPGone},
	planted.OldAcksCount:         {1500, Reconnect | Reorder},
	planted.ReadResendRereads:    {600, Read | Loss},
	planted.FenceWaitsForAckOnly: {600, Read | Fence},
	planted.LocalsIgnoreFence:    {600, Read | Fence | Window},
	planted.LocalsWaitForNobody:  {600, Read | Fence | Window},
	planted.AliasBypassesAtomic:  {600, Atomic | Overlap | Reorder | Alias},
	planted.OldRequestsRun:       {200, Reuse},
	planted.OldResponsesLand:     {3000, Reuse | Read | Reorder},
	planted.ResetKeepsBound:      {600, SRQ | Send | Reconnect},
}

// TestPlanted plants each bug in the core, alone, and lets the checkers look for it.
func TestPlanted(t *testing.T) {
	defer planted.Plant(planted.None)
	if n := len(planted.All()); n < 45 {
		t.Fatalf("%d bugs", n)
	}
	for _, b := range planted.All() {
		planted.Plant(b)
		x := plantedBugs[b]
		if x.seeds == 0 {
			x.seeds = 200
		}
		began, played := time.Now(), 0
		var v *Violation
		Many(context.Background(), Options{With: x.with}, 1, x.seeds, runtime.GOMAXPROCS(0), func(r Result) bool {
			played++
			v = r.Violation
			return v == nil
		})
		if v == nil {
			t.Errorf("%-28s not found in %d seeds", b, played)
			continue
		}
		t.Logf("%-28s %4d seeds %5.1f s  %s %.80s", b, played, time.Since(began).Seconds(), v.Property, v.Msg)
	}
}
