package netdev

import (
	"errors"
	"testing"

	"github.com/metaroce/metaroce/daemon/api"
)

// TestUnheard: a daemon that refused has heard; one that was not reached is told again.
func TestUnheard(t *testing.T) {
	gone := errors.New("no daemon")
	if err := Unheard(&api.Error{Message: "no room"}); err != nil {
		t.Error(err)
	}
	if err := Unheard(gone); !errors.Is(err, gone) {
		t.Error(err)
	}
	if err := Unheard(nil); err != nil {
		t.Error(err)
	}
}
