/**
 * The elastic ApplicationMaster of Trainmaster's jobs.
 *
 * <p>{@link io.trainmaster.yarn.master.Fleet} is the state machine, without I/O or a clock: its inputs are orders,
 * containers and time, its outputs {@link io.trainmaster.yarn.master.Action}s.
 * {@link io.trainmaster.yarn.master.Master} is the loop between it, YARN and
 * {@link io.trainmaster.yarn.master.Follower}, which receives the orders.
 */
package io.trainmaster.yarn.master;
