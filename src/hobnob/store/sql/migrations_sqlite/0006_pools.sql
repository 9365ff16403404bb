-- A lane is the rule that turns of one session run one at a time. What limits how many turns of a kind run
-- at once is a pool.
alter table turns rename column lane to pool;
