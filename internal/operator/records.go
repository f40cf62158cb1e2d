package operator

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/machine/host"
	"github.com/cay-run/cay/internal/store"
)

// importedSuffix is what the names of SQLite's files end with once their records
// are in PostgreSQL.
const importedSuffix = ".imported"

// OpenRecords opens a server's records, wherever they are, for the holder of the
// data directory's lock.
func OpenRecords(ctx context.Context, cfg config.Config, sealer store.Sealer) (*store.DB, error) {
	path := Host(cfg).Database()
	here, moved := exists(path), exists(path+importedSuffix)
	switch {
	case cfg.DatabaseURL == "" && !here && moved:
		return nil, cay.Errorf(cay.Conflict, "the records of %s were moved to PostgreSQL", cfg.Data).
			WithHint("set CAY_DATABASE_URL, as it was for cay cluster import")
	case cfg.DatabaseURL == "":
		return store.Open(ctx, path, sealer)
	case here:
		return nil, cay.Errorf(cay.Conflict, "%s has records, and CAY_DATABASE_URL names another place for them", path).
			WithHint("move them with cay cluster import, or move the file away to begin without them")
	}
	return store.OpenPostgres(ctx, postgresOf(cfg), sealer)
}

func postgresOf(cfg config.Config) store.PostgresConfig {
	return store.PostgresConfig{URL: cfg.DatabaseURL, Standby: cfg.DatabaseStandby}
}

// HasRecords reports whether a server may have recorded anything.
func HasRecords(cfg config.Config) bool {
	return cfg.DatabaseURL != "" || exists(Host(cfg).Database())
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// Import moves the records of a data directory into PostgreSQL, all or none. No
// server may run there.
func Import(ctx context.Context, cfg config.Config) ([]store.Copied, error) {
	if cfg.DatabaseURL == "" {
		return nil, cay.Errorf(cay.Invalid, "CAY_DATABASE_URL does not say where the records go").
			WithHint("set it as the server will have it")
	}
	at := Host(cfg)
	lock, err := host.Take(ctx, at)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	path := at.Database()
	if !exists(path) {
		return nil, cay.Errorf(cay.NotFound, "there are no records in %s", path).
			WithHint("set CAY_DATA_DIR as it is set for the server")
	}
	key, err := seal.Open(at.Data)
	if err != nil {
		return nil, err
	}
	from, err := store.Open(ctx, path, key)
	if err != nil {
		return nil, err
	}
	copied, err := importInto(ctx, cfg, from, key)
	if err = errors.Join(err, from.Close()); err != nil {
		return nil, err
	}
	// They stay as a copy. A server that is started without the address does not
	// take them for its records.
	for _, end := range []string{"-shm", "-wal", ""} {
		if err := os.Rename(path+end, path+importedSuffix+end); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return copied, cay.Wrap(cay.Unavailable, err, "the records are in PostgreSQL, but %s cannot be renamed", path+end).
				WithHint("move %s, %[1]s-wal and %[1]s-shm away", path)
		}
	}
	return copied, nil
}

func importInto(ctx context.Context, cfg config.Config, from *store.DB, key store.Sealer) ([]store.Copied, error) {
	into, err := store.OpenPostgres(ctx, postgresOf(cfg), key)
	if err != nil {
		return nil, err
	}
	copied, err := store.Import(ctx, from, into)
	return copied, errors.Join(err, into.Close())
}
