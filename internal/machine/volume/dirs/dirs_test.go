package dirs_test

import (
	"testing"

	"github.com/cay-run/cay/internal/machine/volume"
	"github.com/cay-run/cay/internal/machine/volume/dirs"
	"github.com/cay-run/cay/internal/machine/volume/volumetest"
)

func TestStorage(t *testing.T) {
	volumetest.Run(t, volumetest.Options{Open: func(t *testing.T, dir string) volume.Storage {
		s, err := dirs.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, SizeMB: 16, Shrinks: true})
}
