package store_test

import (
	"testing"

	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/pgtest"
	"github.com/cay-run/cay/internal/store/storetest"
)

func TestPostgres(t *testing.T) {
	server := pgtest.Start(t)
	empty := server.Database(t, "")
	if err := storetest.OpenPostgres(t, server.URL(empty)).Close(); err != nil { // which makes the tables
		t.Fatal(err)
	}
	storetest.Run(t, func(t testing.TB) store.Store {
		return storetest.OpenPostgres(t, server.URL(server.Database(t, empty)))
	})
}
