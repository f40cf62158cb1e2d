package disk

import (
	"bytes"
	"testing"

	"github.com/cay-run/cay"
)

func TestATeamLeavesAsMuchOfADiskAsItHas(t *testing.T) {
	dir := t.TempDir()
	l, err := Reserve{Dir: dir, Bytes: 1}.Level()
	if err != nil {
		t.Fatal(err)
	}
	half := Reserve{Dir: dir, Bytes: l.Free / 2} // so that what others do here meanwhile does not matter
	for name, c := range map[string]struct {
		held, more int64
		fits       bool
	}{
		"the first bytes":  {0, 1 << 20, true},
		"very many":        {0, l.Free, false},
		"a little beside":  {l.Free / 8, 1 << 20, true},
		"as much as stays": {l.Free / 8, l.Free / 4, false},
		"far too much":     {l.Free, 0, false},
	} {
		r := &Ration{Disk: half, What: "archives", Held: func() int64 { return c.held }}
		if err := r.Check(c.more); (err == nil) != c.fits || err != nil && cay.KindOf(err) != cay.NoSpace {
			t.Errorf("%s: %v", name, err)
		}
	}
	held := int64(0)
	r := &Ration{Disk: half, What: "archives", Held: func() int64 { return held }}
	w := r.Writer(new(bytes.Buffer))
	some := make([]byte, rationStep/2+1)
	if _, err := w.Write(some); err != nil {
		t.Error(err)
	}
	held = l.Free
	if _, err := w.Write(some); cay.KindOf(err) != cay.NoSpace {
		t.Errorf("beyond the share: %v", err)
	}
}
