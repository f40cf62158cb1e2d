package store

import "context"

// Settle copies the log back and waits until it has its room.
func Settle(s *SQLite) {
	_, _ = copyBack(context.Background(), s.log.db)
	s.log.close()
	s.room.keep()
	again, err := openCheckpoints(s.path, s.room)
	if err == nil {
		s.log = again
		s.log.start(s.writer)
	}
}
